#include "parse-local-speculative.h"

#include "common.h"
#include "gguf.h"
#include "llama.h"
#include "log.h"
#include "speculative.h"

#include "llama-ext.h" // target_layer_ids of EAGLE-3 and DFlash heads

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

// Where llama.cpp has no graph for something it asserts, so that support has to be known beforehand.
// These are the architectures of the pinned version...

// ...whose MTP heads have a graph,
static const std::set<std::string> ARCHS_MTP = {
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "hy_v3",
    "mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35",
};

// ...with more than one MTP head,
static const std::set<std::string> ARCHS_MTP_MANY = { "hy_v3", "mimo2", "step35" };

// ...that hand out the input of each layer,
static const std::set<std::string> ARCHS_LAYER_INPUT = {
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "llama", "mimo2", "minimax-01",
    "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35",
    "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
};

// ...and the output of the last one
static const std::set<std::string> ARCHS_LAST_OUTPUT = {
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35",
    "qwen35moe", "qwen3next",
};

namespace {

struct spec_error : std::runtime_error {
    int32_t code;

    spec_error(int32_t code, const std::string & what) : std::runtime_error(what), code(code) {}
};

void copy_string(const std::string & text, char * out, size_t n) {
    if (out && n > 0) {
        std::snprintf(out, n, "%s", text.c_str());
    }
}

std::string model_meta(const llama_model * model, const std::string & key) {
    char buf[256] = {};
    return llama_model_meta_val_str(model, key.c_str(), buf, sizeof(buf)) < 0 ? "" : buf;
}

std::string model_arch(const llama_model * model) {
    return model_meta(model, "general.architecture");
}

// the few facts about a file that llama.h does not tell; lookups that never assert
struct gguf_file {
    std::unique_ptr<gguf_context, decltype(&gguf_free)> ctx{ nullptr, gguf_free };

    explicit gguf_file(const char * path) {
        gguf_init_params params = { /*.no_alloc =*/ true, /*.ctx =*/ nullptr };

        ctx.reset(gguf_init_from_file(path, params));
        if (!ctx) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_FILE, "the file is not a readable GGUF file");
        }
    }

    bool has_tensor(const std::string & name) const {
        return gguf_find_tensor(ctx.get(), name.c_str()) >= 0;
    }

    std::string str(const std::string & key) const {
        const int64_t id = gguf_find_key(ctx.get(), key.c_str());
        return id >= 0 && gguf_get_kv_type(ctx.get(), id) == GGUF_TYPE_STRING ? gguf_get_val_str(ctx.get(), id) : "";
    }

    uint32_t u32(const std::string & key) const {
        const int64_t id = gguf_find_key(ctx.get(), key.c_str());
        return id >= 0 && gguf_get_kv_type(ctx.get(), id) == GGUF_TYPE_UINT32 ? gguf_get_val_u32(ctx.get(), id) : 0;
    }
};

common_speculative_type type_of_file(const gguf_file & file) {
    const std::string arch = file.str("general.architecture");

    if (arch.empty()) {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_FILE, "the file names no architecture");
    }
    if (arch == "eagle3") {
        return COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3;
    }
    if (arch == "dflash") {
        return file.has_tensor("markov_w1.weight") ? COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK
                                                   : COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH;
    }
    if (arch == "gemma4-assistant") {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, "heads of the architecture gemma4-assistant are not supported");
    }

    // heads may be announced and not be there: llama.cpp's converter can leave them out
    const uint32_t n_nextn = file.u32(arch + ".nextn_predict_layers");
    const uint32_t n_layer = file.u32(arch + ".block_count");

    const bool usable = ARCHS_MTP.count(arch) > 0 && (n_nextn == 1 || ARCHS_MTP_MANY.count(arch) > 0);

    if (n_nextn > 0 && n_nextn <= n_layer && usable &&
            file.has_tensor("blk." + std::to_string(n_layer - n_nextn) + ".nextn.eh_proj.weight")) {
        return COMMON_SPECULATIVE_TYPE_DRAFT_MTP;
    }

    return COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE;
}

bool is_ngram(common_speculative_type type) {
    return type >= COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE && type <= COMMON_SPECULATIVE_TYPE_NGRAM_CACHE;
}

// types that read the target's hidden states after each of its batches
bool reads_hidden_states(common_speculative_type type) {
    return !is_ngram(type) && type != COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE;
}

bool same_vocabulary(const llama_model * a, const llama_model * b) {
    const llama_vocab * va = llama_model_get_vocab(a);
    const llama_vocab * vb = llama_model_get_vocab(b);

    const int32_t n = llama_vocab_n_tokens(va);
    if (n != llama_vocab_n_tokens(vb) || llama_vocab_type(va) != llama_vocab_type(vb)) {
        return false;
    }

    for (int32_t i = 0; i < n; ++i) {
        if (std::string(llama_vocab_get_text(va, i)) != llama_vocab_get_text(vb, i)) {
            return false;
        }
    }

    return true;
}

// refuse what the implementations and graphs of the heads would assert on
void check_heads(common_speculative_type type, const llama_model * tgt, const llama_model * dft, const char * path) {
    if (type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP) {
        if (llama_model_n_embd_out(dft) != llama_model_n_embd_out(tgt)) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, "the MTP heads are of another width than the target");
        }
        return;
    }

    const std::string arch_tgt = model_arch(tgt);
    const std::string arch_dft = model_arch(dft);

    if (ARCHS_LAYER_INPUT.count(arch_tgt) == 0) {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE,
                "llama.cpp does not hand out the hidden states of a target of the architecture " + arch_tgt);
    }

    if (model_meta(dft, arch_dft + ".target_hidden_size") != std::to_string(llama_model_n_embd(tgt)) &&
            (type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 || !model_meta(dft, arch_dft + ".target_hidden_size").empty())) {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, "the head was made for a target of another width");
    }

    // what the head does not have it takes from the target
    const gguf_file file(path);
    if (llama_model_n_embd(dft) != llama_model_n_embd(tgt) &&
            !(file.has_tensor("token_embd.weight") && file.has_tensor("output.weight"))) {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE,
                "the head uses the target's embeddings, which are of another width");
    }

    const int32_t   n_layer = llama_model_n_layer(tgt);
    const uint32_t  n_ids   = llama_model_target_layer_ids_n(dft);
    const int32_t * ids     = llama_model_target_layer_ids(dft);

    const bool last = type == COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 && ARCHS_LAST_OUTPUT.count(arch_tgt) > 0;
    for (uint32_t i = 0; i < n_ids; ++i) {
        if (ids[i] < 0 || ids[i] > n_layer || (ids[i] == n_layer && !last)) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, "the head reads layer " + std::to_string(ids[i]) +
                    " of the target, which has " + std::to_string(n_layer));
        }
    }
    if (n_ids == 0) {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, "the head does not say which layers of the target it reads");
    }

    if (type != COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 && llama_vocab_mask(llama_model_get_vocab(dft)) < 0) {
        throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, "the head names no mask token");
    }
}

} // namespace

struct parse_local_speculator {
    common_speculative_type   type;
    common_params_speculative params;

    llama_context * ctx_tgt = nullptr;
    llama_context_ptr      ctx_dft;
    common_batch           batch;
    common_speculative_ptr spec; // destroyed first: it restores settings of ctx_dft

    llama_tokens seq; // the sequence, the last token not decoded by the target yet
    llama_tokens dft; // draft-simple: tokens whose cells are in ctx_dft

    // hidden-state types: tokens of the target's sequence that have been processed, and the position
    // behind the hidden state that the next draft would start from
    int32_t n_seen    = 0;
    int32_t n_pending = 0;

    bool proposed   = false; // the running step was proposed by this speculator
    bool ever_drafted = false;

    std::string error;

    bool follows() const { return reads_hidden_states(type); }

    ~parse_local_speculator() {
        if (spec && follows()) {
            llama_set_embeddings_nextn(ctx_tgt, false, false);

            const llama_model * model = llama_get_model(ctx_dft.get());
            for (uint32_t i = 0; i < llama_model_target_layer_ids_n(model); ++i) {
                const int32_t id = llama_model_target_layer_ids(model)[i];
                if (id < llama_model_n_layer(llama_get_model(ctx_tgt))) {
                    llama_set_embeddings_layer_inp(ctx_tgt, id, false);
                }
            }
        }
    }

    llama_memory_t memory() const { return llama_get_memory(ctx_dft.get()); }

    void init(const parse_local_speculator_params & p) {
        ctx_tgt = p.ctx_tgt;

        params.types = { type };

        params.draft.n_max            = p.n_max;
        params.draft.p_min            = p.p_min;
        params.draft.ctx_tgt          = ctx_tgt;
        params.draft.backend_sampling = false; // one code path on every backend

        for (auto * map : { &params.ngram_simple, &params.ngram_map_k, &params.ngram_map_k4v }) {
            map->size_n = (uint16_t) p.ngram_size;
            map->size_m = (uint16_t) std::max(p.n_max, p.ngram_size); // shorter drafts would be refused
        }
        params.ngram_mod.n_match = p.ngram_size;
        params.ngram_mod.n_max   = p.n_max;
        params.ngram_mod.n_min   = 1;

        if (!is_ngram(type)) {
            init_draft_context(p);
            params.draft.ctx_dft = ctx_dft.get();
        }

        restart();
    }

    void init_draft_context(const parse_local_speculator_params & p) {
        const llama_model * tgt = llama_get_model(ctx_tgt);
        const bool own_heads    = type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP && !p.model_dft;

        llama_model * dft = own_heads ? const_cast<llama_model *>(tgt) : p.model_dft;
        if (!dft || (!own_heads && !p.path_dft)) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT, "this type needs a draft model");
        }
        if (type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP && !p.heads_loaded) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT, "the model was loaded without its MTP heads");
        }
        if (follows()) {
            if (!own_heads && type_of_file(gguf_file(p.path_dft)) != type) {
                throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE,
                        "the file holds no head of the type " + common_speculative_type_to_str(type));
            }
            if (!same_vocabulary(tgt, dft)) {
                throw spec_error(PARSE_LOCAL_SPECULATIVE_VOCABULARY, "the head was made for another vocabulary");
            }
            check_heads(type, tgt, dft, p.path_dft);
        } else if (llama_model_is_recurrent(dft) || llama_model_is_hybrid(dft)) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE,
                    "a draft model with recurrent memory cannot take rejected tokens back");
        }

        llama_context_params cparams = llama_context_default_params();

        cparams.n_ctx           = p.n_ctx + p.n_max + 1;
        cparams.n_batch         = llama_n_batch(ctx_tgt);
        cparams.n_ubatch        = llama_n_ubatch(ctx_tgt);
        cparams.n_seq_max       = 1;
        cparams.n_outputs_max   = p.n_max + 1; // DFlash drafts a block at once
        cparams.n_threads       = p.n_threads;
        cparams.n_threads_batch = p.n_threads;
        cparams.type_k          = (ggml_type) p.type_kv;
        cparams.type_v          = (ggml_type) p.type_kv;
        cparams.flash_attn_type = (llama_flash_attn_type) p.flash_attn;
        cparams.swa_full        = true; // rejected tokens are cut off again
        cparams.no_perf         = true;
        cparams.ctx_other       = ctx_tgt;
        if (type == COMMON_SPECULATIVE_TYPE_DRAFT_MTP) {
            cparams.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        }

        ctx_dft.reset(llama_init_from_model(dft, cparams));
        if (!ctx_dft) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_MEMORY, "llama.cpp could not create the draft context");
        }
        if (p.abort) {
            llama_set_abort_callback(ctx_dft.get(), p.abort, p.abort_data);
        }

        batch = common_batch(ctx_dft.get());
    }

    void restart() {
        spec.reset();
        try {
            spec.reset(common_speculative_init(params, 1));
        } catch (const std::exception & e) {
            // draft-simple's own comparison of the vocabularies
            const bool vocabulary = std::string(e.what()).find("vocab") != std::string::npos;
            throw spec_error(vocabulary ? PARSE_LOCAL_SPECULATIVE_VOCABULARY : PARSE_LOCAL_SPECULATIVE_INCOMPATIBLE, e.what());
        }
        if (!spec) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT, "llama.cpp knows no such type");
        }
        ever_drafted = false;
    }

    void truncate(int32_t n) {
        proposed = false;
        if (!follows() || n >= n_seen) {
            return;
        }
        if (n <= 0 || !llama_memory_seq_rm(memory(), 0, n, -1)) {
            llama_memory_clear(memory(), false);
            n = 0;
        }
        n_seen = n;
    }

    // hand one batch to the implementation
    void process(const int32_t * tokens, int32_t n, int32_t pos) {
        batch.clear();
        for (int32_t i = 0; i < n; ++i) {
            batch.add(tokens[i], pos + i, 0, true);
        }
        if (!common_speculative_process(spec.get(), batch)) {
            llama_memory_clear(memory(), false);
            dft.clear();
            n_seen    = 0;
            n_pending = 0;
            throw spec_error(PARSE_LOCAL_SPECULATIVE_DECODE, "the draft model could not decode");
        }
    }

    void follow(const int32_t * tokens, int32_t n, int32_t pos) {
        if (!follows() || n == 0) {
            return;
        }
        if (pos > n_seen) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_LOST, "earlier tokens have not been seen");
        }
        if (pos < n_seen) {
            truncate(pos);
        }
        process(tokens, n, pos);
        n_seen = n_pending = pos + n;
    }

    void begin(const int32_t * tokens, int32_t n) {
        seq.assign(tokens, tokens + n);
        proposed = false;
        if (type == COMMON_SPECULATIVE_TYPE_NGRAM_CACHE) {
            restart(); // it counts on a sequence that only grows
        }
        if (is_ngram(type)) {
            common_speculative_begin(spec.get(), 0, llama_tokens(seq.begin(), seq.end() - 1));
        }
    }

    // bring draft-simple's cells up to the sequence without its last token
    void sync() {
        const size_t n_past = seq.size() - 1;

        size_t n = 0;
        while (n < dft.size() && n < n_past && dft[n] == seq[n]) {
            ++n;
        }
        if (!llama_memory_seq_rm(memory(), 0, (llama_pos) n, -1)) {
            llama_memory_clear(memory(), false);
            n = 0;
        }
        dft.resize(n);

        const size_t n_batch = llama_n_batch(ctx_dft.get());
        while (dft.size() < n_past) {
            const size_t n_chunk = std::min(n_batch, n_past - dft.size());
            const size_t pos     = dft.size();

            process(seq.data() + pos, (int32_t) n_chunk, (int32_t) pos);
            dft.insert(dft.end(), seq.begin() + pos, seq.begin() + pos + n_chunk);
        }
    }

    int32_t propose(int32_t n_max, int32_t * out) {
        proposed = false;
        if (n_max <= 0 || seq.size() < 2) {
            return 0;
        }
        const int32_t pos = (int32_t) seq.size() - 1;
        if (follows() && (n_seen != pos || n_pending != pos)) {
            return 0; // the next batch of the target brings it back into step
        }
        if (type == COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) {
            sync();
        }

        const llama_tokens prompt(seq.begin(), seq.end() - 1);

        llama_tokens result;
        common_speculative_get_draft_params(spec.get(), 0) = {
            /* .drafting = */ true,
            /* .n_max    = */ n_max,
            /* .pos0     = */ pos,
            /* .id_last  = */ seq.back(),
            /* .prompt   = */ &prompt,
            /* .result   = */ &result,
        };
        common_speculative_draft(spec.get());

        if (type == COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) {
            // the cells of what has just been drafted are good for as long as the target agrees
            const size_t n_cells = (size_t) (llama_memory_seq_pos_max(memory(), 0) + 1);
            dft = seq;
            dft.insert(dft.end(), result.begin(), result.end());
            dft.resize(std::min(n_cells, dft.size()));
        } else if (follows()) {
            llama_memory_seq_rm(memory(), 0, pos, -1); // the target's batch will write these cells again
        }

        result.resize(std::min(result.size(), (size_t) n_max));
        std::copy(result.begin(), result.end(), out);

        proposed = !result.empty();
        ever_drafted = ever_drafted || proposed;
        return (int32_t) result.size();
    }

    void accept(const int32_t * tokens, int32_t n) {
        seq.insert(seq.end(), tokens, tokens + n);
        // heads start their next draft from the hidden state of the last accepted token, whoever proposed it
        if (proposed || (follows() && ever_drafted)) {
            common_speculative_accept(spec.get(), 0, (uint16_t) (n - 1));
            n_pending = (int32_t) seq.size() - 1;
        }
        proposed = false;
    }
};

namespace {

// run f, turning exceptions into a code and a message
template <typename F>
int32_t guarded(std::string & error, const F & f) {
    try {
        error.clear();
        return f();
    } catch (const spec_error & e) {
        error = e.what();
        return e.code;
    } catch (const std::bad_alloc &) {
        error = "out of memory";
        return PARSE_LOCAL_SPECULATIVE_MEMORY;
    } catch (const std::exception & e) {
        error = e.what();
    } catch (...) {
        error = "an unknown exception";
    }
    return PARSE_LOCAL_SPECULATIVE_INTERNAL;
}

} // namespace

void parse_local_speculative_log(bool verbose) {
    common_log_set_verbosity_thold(verbose ? LOG_LEVEL_TRACE : -1);
}

int32_t parse_local_speculative_type(const char * path, char * type, size_t n_type, char * error, size_t n_error) {
    std::string message;
    const int32_t status = guarded(message, [&]() {
        if (!path || !type) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT, "a pointer is missing");
        }
        copy_string(common_speculative_type_to_str(type_of_file(gguf_file(path))), type, n_type);
        return PARSE_LOCAL_SPECULATIVE_OK;
    });
    copy_string(message, error, n_error);
    return status;
}

parse_local_speculator * parse_local_speculator_init(
        const parse_local_speculator_params * params, int32_t * status, char * error, size_t n_error) {
    std::unique_ptr<parse_local_speculator> spec;
    std::string message;

    const int32_t code = guarded(message, [&]() {
        if (!params || !params->type || !params->ctx_tgt || params->n_max < 1 || params->n_max > UINT16_MAX ||
                params->n_ctx < 1 || params->ngram_size < 1 || params->ngram_size > UINT16_MAX) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT, "a parameter is missing or out of range");
        }
        const auto type = common_speculative_type_from_name(params->type);
        if (type == COMMON_SPECULATIVE_TYPE_COUNT || type == COMMON_SPECULATIVE_TYPE_NONE) {
            throw spec_error(PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT, "llama.cpp knows no such type");
        }
        spec.reset(new parse_local_speculator());
        spec->type = type;
        spec->init(*params);
        return PARSE_LOCAL_SPECULATIVE_OK;
    });
    if (status) {
        *status = code;
    }
    copy_string(message, error, n_error);
    return code == PARSE_LOCAL_SPECULATIVE_OK ? spec.release() : nullptr;
}

void parse_local_speculator_free(parse_local_speculator * spec) {
    delete spec;
}

const char * parse_local_speculator_error(const parse_local_speculator * spec) {
    return spec ? spec->error.c_str() : "";
}

bool parse_local_speculator_follows(const parse_local_speculator * spec) {
    return spec && spec->follows();
}

int32_t parse_local_speculator_process(parse_local_speculator * spec, const int32_t * tokens, int32_t n, int32_t pos) {
    if (!spec || !tokens || n < 0 || pos < 0) {
        return PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT;
    }
    return guarded(spec->error, [&]() {
        spec->follow(tokens, n, pos);
        return PARSE_LOCAL_SPECULATIVE_OK;
    });
}

void parse_local_speculator_truncate(parse_local_speculator * spec, int32_t n) {
    if (spec) {
        guarded(spec->error, [&]() {
            spec->truncate(n);
            return PARSE_LOCAL_SPECULATIVE_OK;
        });
    }
}

int32_t parse_local_speculator_begin(parse_local_speculator * spec, const int32_t * tokens, int32_t n) {
    if (!spec || !tokens || n < 1) {
        return PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT;
    }
    return guarded(spec->error, [&]() {
        spec->begin(tokens, n);
        return PARSE_LOCAL_SPECULATIVE_OK;
    });
}

int32_t parse_local_speculator_propose(parse_local_speculator * spec, int32_t n_max, int32_t * out) {
    if (!spec || !out) {
        return PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT;
    }
    return guarded(spec->error, [&]() { return spec->propose(n_max, out); });
}

int32_t parse_local_speculator_accept(parse_local_speculator * spec, const int32_t * tokens, int32_t n) {
    if (!spec || !tokens || n < 1) {
        return PARSE_LOCAL_SPECULATIVE_INVALID_ARGUMENT;
    }
    return guarded(spec->error, [&]() {
        spec->accept(tokens, n);
        return PARSE_LOCAL_SPECULATIVE_OK;
    });
}
