/* The kernels library through C: what the method harness drives in process (ctypes), on machines
 * with and without gRPC. Objects are created and freed in pairs; not thread safe. Functions that
 * can fail return a status code of grpc/absl (0 is OK, 3 INVALID_ARGUMENT, 12 UNIMPLEMENTED, ...);
 * attnd_error() then holds the text of the calling thread's last failure. */
#ifndef ATTND_KERNELS_C_API_H_
#define ATTND_KERNELS_C_API_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attnd_engine attnd_engine;
typedef struct attnd_call attnd_call;

const char* attnd_error(void);

/* All calls run on the engine's first device, the processor. isa: "avx512", "avx2", "sse4" or ""
 * for the best; "cuda:0": that device in place of the processor, without a self-test. poison: fresh
 * memory holds NaN. Null on error. */
attnd_engine* attnd_engine_new(int threads, const char* isa, int poison);
void attnd_engine_free(attnd_engine*);
/* "AVX2, 2 threads"; valid while the engine lives. */
const char* attnd_engine_description(const attnd_engine*);
const char* attnd_engine_device(const attnd_engine*);  // "cpu", "cuda:0"
/* FLOP/s of the device: of the processor in float32, measured at start-up; of a CUDA device in 16
 * bits, by the data sheet of its tensor cores. */
double attnd_engine_peak_flops(const attnd_engine*);
/* Parallel launches so far. */
int64_t attnd_engine_launches(const attnd_engine*);

/* All methods as JSON, the content of ListMethods; valid for the life of the process. */
const char* attnd_methods_json(void);

/* Null if memory ends. Where an argument of the functions that follow cannot be held, attnd_plan
 * fails. */
attnd_call* attnd_call_new(const char* method, int backward);
void attnd_call_free(attnd_call*);
void attnd_call_bool(attnd_call*, const char* option, int value);
void attnd_call_int(attnd_call*, const char* option, int64_t value);
void attnd_call_uint(attnd_call*, const char* option, uint64_t value); /* beyond int64_t */
void attnd_call_ints(attnd_call*, const char* option, const int64_t* values, int count);
void attnd_call_enums(attnd_call*, const char* option, const char* const* values, int count);
void attnd_call_float(attnd_call*, const char* option, double value);
void attnd_call_enum(attnd_call*, const char* option, const char* value);
/* dtype: 0 float32, 1 float16, 2 bfloat16, 3 int32, 4 uint8. shape and stride (in elements) have
 * `rank` entries, four-dimensional ones in the order [B,H,N,D]; bnhd marks that memory order. The
 * data must live until the call is freed. */
void attnd_call_tensor(attnd_call*, const char* name, int dtype, int rank, const int64_t* shape,
                       const int64_t* stride, int bnhd, const void* data);

/* Validates and predicts. */
int attnd_plan(attnd_engine*, attnd_call*);
int64_t attnd_call_workspace_bytes(const attnd_call*); /* planned upper bound */
double attnd_call_flops(const attnd_call*);            /* planned; once executed, as counted */
double attnd_call_pairs(const attnd_call*);            /* likewise */
int attnd_call_estimates_pairs(const attnd_call*);     /* Plan::estimates_pairs */
double attnd_call_seconds(const attnd_call*);
/* Plan::notes by index, until null; each lives until the call is freed. */
const char* attnd_call_note(const attnd_call*, int index);

/* Plans what is not planned and runs all calls as one batch (their buckets must be equal). */
int attnd_execute(attnd_engine*, attnd_call** calls, int count);
int64_t attnd_peak_workspace_bytes(const attnd_engine*); /* of the last execute */

/* Outputs of an executed call, by index until the name is null. Dense in the given order. Shape has
 * 4 entries. The data lives until the call is freed. */
const char* attnd_call_output(const attnd_call*, int index, int* dtype, int* rank, int64_t* shape,
                              int* bnhd, const void** data);

#ifdef __cplusplus
}
#endif

#endif
