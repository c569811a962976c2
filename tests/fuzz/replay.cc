// Replays the inputs that libFuzzer found: `replay CORPUS MUTATED` runs the inputs of the corpus, and then MUTATED
// random ones of them with some bytes changed. In the corpus each input follows its length in two bytes.
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
  for (size_t start = 0; start + 2 <= bytes.size();) {
    const size_t size = bytes[start] + 256 * bytes[start + 1];
    inputs.emplace_back(&bytes[start + 2], &bytes[start + 2 + size]);
    start += 2 + size;
  }
  for (const std::vector<uint8_t>& input : inputs) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::minstd_rand generator;
  const int num_mutated = std::atoi(arguments[2]);
  for (int i = 0; i < num_mutated; ++i) {
    std::vector<uint8_t> input = inputs[generator() % inputs.size()];
    for (int change = 0; change < 3 && !input.empty(); ++change) input[generator() % input.size()] = generator() >> 8;
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs and %d changed ones are done\n", inputs.size(), num_mutated);
}
