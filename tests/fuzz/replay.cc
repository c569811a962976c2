// Runs what libFuzzer has found, from one file, each input behind its length in two bytes, or every n-th of them; and
// then as many more inputs as are asked for, each one of these with some bytes changed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int, char** arguments) {
  std::ifstream file(arguments[1], std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::vector<uint8_t>> inputs;
  for (size_t at = 0; at + 2 <= bytes.size();) {
    const size_t size = bytes[at] + 256 * bytes[at + 1];
    inputs.emplace_back(&bytes[at + 2], &bytes[at + 2 + size]);
    at += 2 + size;
  }
  const size_t every = std::atoi(arguments[2]);
  for (size_t i = 0; i < inputs.size(); i += every) LLVMFuzzerTestOneInput(inputs[i].data(), inputs[i].size());
  std::minstd_rand generator;
  const int more = std::atoi(arguments[3]);
  for (int i = 0; i < more; ++i) {
    std::vector<uint8_t> input = inputs[generator() % inputs.size()];
    for (int change = 0; change < 3 && !input.empty(); ++change) input[generator() % input.size()] = generator() >> 8;
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("of %zu inputs every %zu. and %d changed ones are done\n", inputs.size(), every, more);
}
