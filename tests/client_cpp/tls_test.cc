// Encrypted connections, to a server with a certificate made here.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "tests/client_cpp/fake_server.h"
#include "tests/client_cpp/sample.h"

namespace attnd::client {
namespace {

struct Identity {
  std::string key, certificate;  // PEM
};

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

// Signed by itself, for 127.0.0.1.
Identity MakeIdentity() {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("attnd"), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  X509_EXTENSION* address =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(certificate.get(), address, -1);
  X509_EXTENSION_free(address);
  X509_sign(certificate.get(), key.get(), EVP_sha256());

  BIO* key_pem = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(key_pem, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  BIO* certificate_pem = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(certificate_pem, certificate.get());
  return {TextOf(key_pem), TextOf(certificate_pem)};
}

TEST(Tls, TrustsTheAuthoritiesOfTheFileOnly) {
  const Identity identity = MakeIdentity();
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({identity.key, identity.certificate});
  FakeServer server(EchoUnary, nullptr, "127.0.0.1:0", grpc::SslServerCredentials(options));
  const auto answers = [&](const ClientOptions& client_options) {
    const auto q = Values(100'000);
    const auto reply = MustCreate(client_options)->Forward(RequestOf(q));
    return reply.ok() && FloatsOf(*reply) == q;
  };
  const std::string path = testing::TempDir() + "attnd_tls_" + std::to_string(getpid()) + ".pem";
  std::ofstream(path) << identity.certificate;
  EXPECT_TRUE(answers({.target = server.target(), .tls_authorities = path}));
  std::ofstream(path) << MakeIdentity().certificate;
  EXPECT_FALSE(answers({.target = server.target(), .tls_authorities = path, .max_attempts = 1}));
  EXPECT_FALSE(answers({.target = server.target(), .max_attempts = 1}));
  unlink(path.c_str());
}

}  // namespace
}  // namespace attnd::client
