#include "tests/bench/load_options.h"

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd::bench {
namespace {

constexpr char kAbout[] =
    "load: sends attention requests to an attnd server and reports throughput and latency.\n"
    "\n"
    "Closed loop: --concurrency N keeps N requests on their way; the next one leaves when one is\n"
    "answered. Shows the highest throughput of the server.\n"
    "Open loop: --rate R sends R requests a second, whether or not the server keeps up. Latency\n"
    "counts from the scheduled arrival: a stall adds to the latency of the requests that wait.\n"
    "Shows the latency that users see. Keep the rate below what the closed loop reached.\n"
    "\n"
    "  load --concurrency 8 --duration 5 --lengths 128:0.5,1024:0.4,8192:0.1\n"
    "  load --rate 200 --method 'local{window_left:64}@3' --method softmax@1 --json\n"
    "\n"
    "GB/s is payload in both directions, 1 GB = 1e9 bytes. Percentiles are high by 1.6 % at most.\n"
    "Exit codes: 0 done, 1 no request succeeded or a check failed, 2 wrong usage.";

absl::Status Wrong(absl::string_view option, absl::string_view rule, absl::string_view value) {
  return absl::InvalidArgumentError(absl::StrCat(option, " must be ", rule, ", got ", value));
}

// "local{window_left:64}@3", or without a weight.
absl::StatusOr<MethodShare> ParseShare(const std::string& text) {
  const size_t at = text.rfind('@');
  MethodShare share;
  if (at != std::string::npos &&
      (!absl::SimpleAtod(text.substr(at + 1), &share.weight) || !(share.weight > 0))) {
    return Wrong("--method", "SPEC or SPEC@WEIGHT with a weight > 0", text);
  }
  const auto method = client::ParseMethod(text.substr(0, at));
  if (!method.ok()) return method.status();
  share.method = *method;
  return share;
}

// "128:0.5,1024:0.4,8192:0.1", or lengths without weights.
absl::StatusOr<std::vector<LengthShare>> ParseLengths(const std::string& text) {
  std::vector<LengthShare> shares;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> pair = absl::StrSplit(part, ':');
    LengthShare share;
    if (pair.size() > 2 || !absl::SimpleAtoi(pair[0], &share.N) || share.N < 1 ||
        (pair.size() == 2 && (!absl::SimpleAtod(pair[1], &share.weight) || !(share.weight > 0)))) {
      return Wrong("--lengths", "N or N:WEIGHT, separated by commas, both > 0", text);
    }
    shares.push_back(share);
  }
  return shares;
}

struct Texts {
  std::vector<std::string> methods = {"softmax"};
  std::string lengths = "128:0.5,1024:0.4,4096:0.1";
  std::string arrivals = "poisson";
};

void AddRequests(CLI::App* app, LoadOptions* options, Texts* texts) {
  const std::map<std::string, client::Direction> directions = {
      {"forward", client::Direction::kForward}, {"backward", client::Direction::kBackward}};
  const std::map<std::string, client::DType::Value> dtypes = {
      {"float32", client::DType::float32},
      {"float16", client::DType::float16},
      {"bfloat16", client::DType::bfloat16}};
  app->add_option("--target", options->target, "The server, HOST:PORT or unix:/PATH")
      ->capture_default_str();
  app->add_option("--method", texts->methods,
                  "Method in text format, with a weight after @; repeat it for a mix")
      ->type_name("SPEC[@WEIGHT]")
      ->capture_default_str();
  app->add_option("--lengths", texts->lengths, "Lengths of sequences and how often each comes")
      ->type_name("N[:WEIGHT],...")
      ->capture_default_str();
  app->add_option("--direction", options->direction, "forward or backward. Default: forward")
      ->transform(CLI::CheckedTransformer(directions).description(""))
      ->type_name("NAME");
  app->add_option("--heads", options->heads, "Heads of q, k and v")
      ->check(CLI::Range(1, 1 << 16).description(""))
      ->capture_default_str();
  app->add_option("--dim", options->dim, "Features of a head")
      ->check(CLI::Range(1, 1 << 16).description(""))
      ->capture_default_str();
  app->add_option("--dtype", options->dtype, "float32, float16 or bfloat16. Default: float32")
      ->transform(CLI::CheckedTransformer(dtypes).description(""))
      ->type_name("NAME");
}

void AddLoad(CLI::App* app, LoadOptions* options, Texts* texts) {
  const CLI::Validator positive(
      [](std::string& text) -> std::string {
        double value = 0;
        return absl::SimpleAtod(text, &value) && value > 0 && value < 1e9
                   ? ""
                   : "must be > 0, got " + text;
      },
      "");
  auto* concurrency =
      app->add_option("--concurrency", options->concurrency, "Closed loop: requests on their way")
          ->check(CLI::Range(1, 1 << 16).description(""))
          ->capture_default_str();
  app->add_option("--rate", options->rate, "Open loop: arrivals a second")
      ->check(positive)
      ->excludes(concurrency);
  app->add_option("--arrivals", texts->arrivals, "Of the open loop: poisson or constant")
      ->check(CLI::IsMember({"poisson", "constant"}).description(""))
      ->type_name("NAME")
      ->capture_default_str();
  app->add_option("--duration", options->duration_seconds,
                  "Seconds in which requests leave; the last answers may come later")
      ->check(positive)
      ->capture_default_str();
  app->add_option("--timeout", options->timeout_seconds,
                  "Deadline of a request in seconds; 0 is none. Not with --pipeline")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->capture_default_str();
  app->add_option("--connections", options->connections, "Connections that share the load")
      ->check(CLI::Range(1, 1024).description(""))
      ->capture_default_str();
  app->add_flag("--pipeline", options->uses_pipeline,
                "One stream (Run) a connection instead of a call for each request");
  app->add_option("--max-attempts", options->max_attempts,
                  "1 shows every refusal; up to 5 tries again as a client does")
      ->check(CLI::Range(1, 5).description(""))
      ->capture_default_str();
  app->add_option("--spin-us", options->spin_us, "Microseconds of polling before a thread sleeps")
      ->check(CLI::Range(0, 1'000'000).description(""))
      ->capture_default_str();
  app->add_option("--seed", options->seed, "Of the mix and the arrivals")->capture_default_str();
}

absl::Status Finish(const Texts& texts, LoadOptions* options) {
  for (const std::string& text : texts.methods) {
    const auto share = ParseShare(text);
    if (!share.ok()) return share.status();
    options->methods.push_back(*share);
  }
  auto lengths = ParseLengths(texts.lengths);
  if (!lengths.ok()) return lengths.status();
  options->lengths = *std::move(lengths);
  options->is_poisson = texts.arrivals == "poisson";
  if (options->uses_pipeline && options->timeout_seconds > 0) {
    return Wrong("--timeout", "0 with --pipeline", absl::StrCat(options->timeout_seconds));
  }
  return absl::OkStatus();
}

}  // namespace

LoadCommandLine ParseLoadCommandLine(int argc, const char* const* argv) {
  LoadOptions options;
  Texts texts;
  CLI::App app(kAbout, "load");
  AddRequests(&app, &options, &texts);
  AddLoad(&app, &options, &texts);
  app.add_flag("--check", options.checks,
               "Compare every reply, to the bit, with that of the same request sent alone");
  app.add_flag("--json", options.prints_json, "One JSON object instead of a table");
  const auto wrong = [](absl::string_view what) {
    return LoadCommandLine{.exit_code = 2,
                           .text = absl::StrCat("load: ", what, " (--help lists the options)\n")};
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {.exit_code = 0, .text = app.help()};
  } catch (const CLI::Error& error) {
    return wrong(error.what());
  }
  if (const absl::Status status = Finish(texts, &options); !status.ok()) {
    return wrong(status.message());
  }
  return {.options = options};
}

}  // namespace attnd::bench
