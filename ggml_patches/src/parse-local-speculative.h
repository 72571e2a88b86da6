// C ABI over llama.cpp's common/speculative: proposals for the next tokens of one sequence.
//
// The functions only propose; whether a token stays is for the caller to decide from the target's own
// output rows, so that nothing here can change a text. One speculator serves one target context, whose
// sequence 0 it follows, and must be freed before that context. A speculator is not thread-safe.
// No function throws, and what llama.cpp would abort on is refused before it gets there.

#ifndef PARSE_LOCAL_SPECULATIVE_H
#define PARSE_LOCAL_SPECULATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#    ifdef PARSE_LOCAL_BUILD
#        define PARSE_LOCAL_API __declspec(dllexport)
#    else
#        define PARSE_LOCAL_API __declspec(dllimport)
#    endif
#else
#    define PARSE_LOCAL_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;
struct llama_model;

// Return codes
#define PARSE_LOCAL_SPECULATIVE_OK                 0
#define PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT (-1) // a missing pointer, a negative count, an unknown type
#define PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE     (-2) // the two models do not fit together, or the type not them
#define PARSE_LOCAL_SPECULATIVE_VOCABULARY       (-3) // they have different vocabularies
#define PARSE_LOCAL_SPECULATIVE_MEMORY           (-4) // the draft context could not be created
#define PARSE_LOCAL_SPECULATIVE_DECODE           (-5) // the draft model failed, or was asked to stop
#define PARSE_LOCAL_SPECULATIVE_LOST             (-6) // positions are missing in front of these tokens
#define PARSE_LOCAL_SPECULATIVE_FILE             (-7) // not a GGUF file, or one without an architecture
#define PARSE_LOCAL_SPECULATIVE_INTERNAL         (-8) // an exception of llama.cpp's; the message quotes it

struct parse_local_speculator;

struct parse_local_speculator_params {
    // a type of common/speculative: draft-simple, draft-eagle3, draft-mtp, draft-dflash, draft-dspark,
    // ngram-simple, ngram-map-k, ngram-map-k4v, ngram-mod or ngram-cache
    const char * type;

    struct llama_context * ctx_tgt;
    struct llama_model   * model_dft; // NULL for n-grams, and for MTP heads in the target's own file
    const char           * path_dft;  // file of model_dft

    int32_t n_max;      // most tokens to propose at once
    int32_t n_ctx;      // tokens of the sequence that is followed
    int32_t n_threads;
    int32_t ngram_size; // tokens that an n-gram has to agree in
    float   p_min;      // draft models stop before a token less likely than this
    int32_t type_kv;    // enum ggml_type of the draft context's KV cache
    int32_t flash_attn; // enum llama_flash_attn_type

    // the model with the MTP heads was loaded with load_mtp; llama.h cannot tell, and llama.cpp asserts it
    bool heads_loaded;

    bool (*abort)(void * data); // polled by the draft context; may be NULL
    void * abort_data;
};

// Let common's log through to stderr, or (at first) nothing of it
PARSE_LOCAL_API void parse_local_speculative_log(bool verbose);

// Which type a GGUF file can serve as: draft-eagle3, draft-dflash and draft-dspark for such heads,
// draft-mtp for a model with usable MTP heads, draft-simple for any other
//   type  : [n_type], receives the name
//   error : [n_error], receives a sentence where the result is not 0
PARSE_LOCAL_API int32_t parse_local_speculative_type(
        const char * path,
        char       * type,
        size_t       n_type,
        char       * error,
        size_t       n_error);

// Create a speculator
//   status : receives the code, 0 for success
//   error  : [n_error], receives a sentence where the result is NULL
PARSE_LOCAL_API struct parse_local_speculator * parse_local_speculator_init(
        const struct parse_local_speculator_params * params,
        int32_t * status,
        char    * error,
        size_t    n_error);

PARSE_LOCAL_API void parse_local_speculator_free(struct parse_local_speculator * spec);

// The last error as a sentence; valid until the next call
PARSE_LOCAL_API const char * parse_local_speculator_error(const struct parse_local_speculator * spec);

// Whether proposals are made from the target's hidden states, so that
// parse_local_speculator_process() has to see every batch of sequence 0
PARSE_LOCAL_API bool parse_local_speculator_follows(const struct parse_local_speculator * spec);

// The target has decoded these tokens of sequence 0 at positions [pos, pos + n), in its last llama_decode()
// Reads the hidden states of that batch; does nothing for types that do not follow
PARSE_LOCAL_API int32_t parse_local_speculator_process(
        struct parse_local_speculator * spec,
        const int32_t * tokens,
        int32_t         n,
        int32_t         pos);

// The target's sequence has been cut to its first n tokens
PARSE_LOCAL_API void parse_local_speculator_truncate(struct parse_local_speculator * spec, int32_t n);

// Begin a continuation of this sequence, whose last token the target has not decoded yet
PARSE_LOCAL_API int32_t parse_local_speculator_begin(
        struct parse_local_speculator * spec,
        const int32_t * tokens,
        int32_t         n);

// Propose what follows the sequence
//   out : [n_max]
// Returns the number of tokens, or a code
PARSE_LOCAL_API int32_t parse_local_speculator_propose(
        struct parse_local_speculator * spec,
        int32_t   n_max,
        int32_t * out);

// The sequence goes on with these tokens: a proposal's first n - 1 tokens, which the target agreed with,
// and one of its own. Call after parse_local_speculator_process() and before the target is truncated
PARSE_LOCAL_API int32_t parse_local_speculator_accept(
        struct parse_local_speculator * spec,
        const int32_t * tokens,
        int32_t         n);

#ifdef __cplusplus
}
#endif

#endif // PARSE_LOCAL_SPECULATIVE_H
