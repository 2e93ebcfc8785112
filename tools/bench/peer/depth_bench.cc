// depth-bench: llama-bench's arguments and JSON, but the tokens before the measured ones are copies of the K and V of
// one real prefill of 512 (by llama_state_seq_get_data and _set_data), so that a depth of 32K takes seconds instead of
// many minutes. Not part of the build: it wants llama.cpp's headers and libraries. `ellm bench --peer DIR` uses
// DIR/depth-bench where it is there:
//   g++ -O2 -std=c++17 -ISRC/include -ISRC/ggml/include depth_bench.cc -o DIR/depth-bench -LDIR -l:libllama.so … -Wl,-rpath,'$ORIGIN'
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

using Bytes = std::vector<uint8_t>;
constexpr int kReal = 512;

struct Reader {
  const uint8_t* at;
  template <typename T>
  T get() {
    T v;
    std::memcpy(&v, at, sizeof v);
    at += sizeof v;
    return v;
  }
};
template <typename T>
void put(Bytes& out, T v) {
  const auto* p = reinterpret_cast<const uint8_t*>(&v);
  out.insert(out.end(), p, p + sizeof v);
}

/// The state of a sequence of `tokens` (at least as many as `state` has) whose rows repeat those of `state`.
Bytes replicate(const Bytes& state, uint32_t tokens) {
  Reader in{state.data()};
  Bytes out;
  put(out, in.get<uint32_t>());  // magic
  const auto sequence = in.get<int32_t>();
  put(out, sequence);
  if (in.get<uint32_t>() != 1) throw "more than one stream";
  put<uint32_t>(out, 1);
  const auto cells = in.get<uint32_t>();
  put(out, tokens);
  in.at += cells * 12;  // position, number of sequences, its id
  for (uint32_t i = 0; i < tokens; ++i) put<int32_t>(out, i), put<uint32_t>(out, 1), put<int32_t>(out, sequence);
  if (in.get<uint32_t>() != 0) throw "V is transposed";
  put<uint32_t>(out, 0);
  const auto layers = in.get<uint32_t>();
  put(out, layers);
  for (uint32_t i = 0; i < 2 * layers; ++i) {
    put(out, in.get<int32_t>());
    const auto row = in.get<uint64_t>();
    put(out, row);
    for (uint32_t t = 0; t < tokens; t += cells)
      out.insert(out.end(), in.at, in.at + std::min(cells, tokens - t) * row);
    in.at += cells * row;
  }
  if (in.at != state.data() + state.size()) throw "another format";
  return out;
}

void feed(llama_context* ctx, int n, int batch, int vocabulary) {
  std::vector<llama_token> tokens(n);
  for (llama_token& t : tokens) t = std::rand() % vocabulary;
  for (int at = 0; at < n; at += batch)
    if (llama_decode(ctx, llama_batch_get_one(tokens.data() + at, std::min(batch, n - at))) != 0)
      throw "llama_decode failed";
  llama_synchronize(ctx);
}

std::vector<int> numbers(const char* text) {
  std::vector<int> out;
  std::stringstream in(text);
  for (std::string item; std::getline(in, item, ',');) out.push_back(std::stoi(item));
  return out;
}
ggml_type type_of(const std::string& s) {
  return s == "q8_0" ? GGML_TYPE_Q8_0 : s == "q4_0" ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string model = "", k = "f16", v = "f16";
  int threads = 1, reps = 1;
  std::vector<int> prompts, generates, depths;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string o = argv[i];
    const char* value = argv[i + 1];
    if (o == "-m") model = value;
    else if (o == "-t") threads = std::atoi(value);
    else if (o == "-p") prompts = numbers(value);
    else if (o == "-n") generates = numbers(value);
    else if (o == "-d") depths = numbers(value);
    else if (o == "-r") reps = std::atoi(value);
    else if (o == "-ctk") k = value;
    else if (o == "-ctv") v = value;
    else if (o != "-fa" && o != "-o") throw "unknown option";
  }
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  ggml_backend_load_all();
  llama_backend_init();
  llama_model* m = llama_model_load_from_file(model.c_str(), llama_model_default_params());
  if (!m) throw "cannot load the model";
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(m));
  std::printf("[");
  const char* comma = "";
  for (const int depth : depths) {
    int most = 0;
    for (const int p : prompts) most = std::max(most, p);
    for (const int g : generates) most = std::max(most, g);
    llama_context_params c = llama_context_default_params();
    c.n_ctx = std::max(depth, kReal) + most;
    c.n_threads = c.n_threads_batch = threads;
    c.type_k = type_of(k), c.type_v = type_of(v);
    c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context* ctx = llama_init_from_model(m, c);
    if (!ctx) throw "no context";
    Bytes state;
    feed(ctx, kReal, 512, vocabulary);
    if (depth > 0) {
      Bytes real(llama_state_seq_get_size(ctx, 0));
      llama_state_seq_get_data(ctx, real.data(), real.size(), 0);
      state = replicate(real, depth);
    }
    const auto measure = [&](int prompt, int generate) {
      std::string ns;
      double sum = 0;
      for (int r = 0; r < reps; ++r) {
        llama_memory_clear(llama_get_memory(ctx), false);
        if (depth > 0 && llama_state_seq_set_data(ctx, state.data(), state.size(), 0) == 0) throw "state refused";
        feed(ctx, 0, 1, vocabulary);
        const auto start = std::chrono::steady_clock::now();
        if (prompt > 0) feed(ctx, prompt, 512, vocabulary);
        for (int i = 0; i < generate; ++i) feed(ctx, 1, 1, vocabulary);
        const double t = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        ns += (r ? ", " : "") + std::to_string(static_cast<long long>(t * 1e9));
        sum += (prompt + generate) / t;
      }
      std::printf(
          "%s{\"n_prompt\": %d, \"n_gen\": %d, \"n_depth\": %d, \"type_k\": \"%s\", \"samples_ns\": [%s], \"avg_ts\": %f}\n",
          comma, prompt, generate, depth, k.c_str(), ns.c_str(), sum / reps);
      comma = ",";
    };
    for (const int p : prompts)
      if (p > 0) measure(p, 0);
    for (const int g : generates)
      if (g > 0) measure(0, g);
    llama_free(ctx);
  }
  std::printf("]\n");
} catch (const char* what) {
  std::fprintf(stderr, "depth-bench: %s\n", what);
  return 1;
}
