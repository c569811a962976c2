// The parser of PTX.
#include "program.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

namespace ptx {
namespace {

struct Token {
  std::string_view text;
  size_t position;
};

bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

// Splits PTX into words (names, numbers, opcodes and directives with their dots), strings and single characters.
std::vector<Token> Tokens(std::string_view text, size_t begin, size_t end) {
  std::vector<Token> tokens;
  for (size_t i = begin; i < end;) {
    size_t next = i + 1;
    if (std::isspace(static_cast<unsigned char>(text[i]))) {
      i = next;
      continue;
    }
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), end);
      continue;
    }
    if (text[i] == '"') {
      next = text.find('"', i + 1) + 1;
    } else if (IsWord(text[i])) {
      while (next < end && (IsWord(text[next]) || text.substr(next, 2) == "::")) next += text[next] == ':' ? 2 : 1;
    }
    tokens.push_back({text.substr(i, next - i), i});
    i = next;
  }
  return tokens;
}

uint32_t BytesOfType(std::string_view type) {  // such as ".b32"
  return type == ".pred" ? 0 : uint32_t(std::stoul(std::string(type.substr(2)))) / 8;
}

uint32_t RoundUp(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Parses one kernel, from its name on.
class KernelParser {
 public:
  KernelParser(const Module& module, const std::map<uint32_t, std::string>& files, std::vector<Token> tokens)
      : module_(module), files_(files), tokens_(std::move(tokens)) {
    kernel_.locations.push_back("");
  }

  std::unique_ptr<Kernel> Parse() {
    kernel_.name = Next();
    ParseParameters();
    while (Peek() != "{") {
      if (Take(".maxntid")) {
        kernel_.max_threads = Number();
        while (Take(",")) kernel_.max_threads *= Number();
      } else {
        ++next_;
      }
    }
    scopes_.emplace_back();
    Expect("{");
    while (scopes_.size() > 1) ParseStatement();
    for (const auto& [index, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) throw std::runtime_error("PTX: no label " + label);
      kernel_.code[index].target = found->second;
    }
    return std::make_unique<Kernel>(std::move(kernel_));
  }

 private:
  struct Register {
    uint32_t bytes;
    bool is_placed;
    Place place;
  };
  // The registers of a pair of braces. A range such as %r<9> is known by its stem.
  struct Scope {
    std::unordered_map<std::string, Register> registers;
    std::unordered_map<std::string, uint32_t> stems;
  };

  std::string_view Peek() const { return next_ < tokens_.size() ? tokens_[next_].text : std::string_view(); }
  std::string Next() {
    if (next_ >= tokens_.size()) Fail("unexpected end");
    return std::string(tokens_[next_++].text);
  }
  bool Take(std::string_view text) {
    const bool is_next = Peek() == text;
    next_ += is_next;
    return is_next;
  }
  void Expect(std::string_view text) {
    if (!Take(text)) Fail("expected " + std::string(text));
  }
  uint32_t Number() { return uint32_t(std::stoul(Next(), nullptr, 0)); }
  uint32_t Line() const { return module_.LineNumber(tokens_[std::min(next_, tokens_.size() - 1)].position); }
  [[noreturn]] void Fail(const std::string& message) const {
    throw std::runtime_error("PTX line " + std::to_string(Line()) + ": " + message + ": " +
                             std::string(module_.Line(Line())));
  }

  struct Variable {
    std::string name;
    uint32_t alignment, bytes;
  };

  // [.align 8] .b8 name[104]
  Variable ParseVariable() {
    const uint32_t alignment = Take(".align") ? Number() : 1;
    const uint32_t element = BytesOfType(Next());
    const std::string name = Next();
    uint32_t count = 1;
    if (Take("[")) {
      count = Number();
      Expect("]");
    }
    return {name, std::max(alignment, element), element * count};
  }

  void ParseParameters() {
    if (!Take("(")) return;
    while (!Take(")")) {
      Expect(".param");
      const Variable variable = ParseVariable();
      const uint32_t offset = RoundUp(kernel_.parameter_bytes, variable.alignment);
      symbols_[variable.name] = offset;
      kernel_.parameters.push_back({offset, variable.bytes});
      kernel_.parameter_bytes = offset + variable.bytes;
      Take(",");
    }
  }

  void ParseStatement() {
    if (Take("{")) {
      scopes_.emplace_back();
    } else if (Take("}")) {
      scopes_.pop_back();
    } else if (Take(".reg")) {
      ParseRegisters();
    } else if (Take(".shared")) {
      ParseShared();
    } else if (Take(".loc")) {
      ParseLocation();
    } else if (Take(".pragma")) {
      ParsePragma();
    } else if (Peek().empty() || Peek()[0] == '.') {
      Fail("unknown directive, or the end");
    } else if (next_ + 1 < tokens_.size() && tokens_[next_ + 1].text == ":") {
      labels_[Next()] = int32_t(kernel_.code.size());
      ++next_;
    } else if (!Take(";")) {
      ParseInstruction();
    }
  }

  void ParseRegisters() {
    const uint32_t bytes = BytesOfType(Next());
    do {
      const std::string name = Next();
      if (Take("<")) {
        scopes_.back().stems[name] = bytes;
        ++next_;
        Expect(">");
      } else {
        scopes_.back().registers[name] = {bytes, false, 0};
      }
    } while (Take(","));
    Expect(";");
  }

  void ParseShared() {
    const Variable variable = ParseVariable();
    Expect(";");
    const uint32_t offset = RoundUp(kernel_.shared_bytes, variable.alignment);
    const uint32_t guarded = offset + uint32_t(kernel_.shared_variables.size()) * kGuardBytes;
    symbols_[variable.name] = guarded;
    kernel_.shared_variables.push_back({guarded, variable.bytes});
    kernel_.shared_bytes = offset + variable.bytes;
  }

  // .loc file line column [, function_name label, inlined_at file line column]
  void ParseLocation() {
    const SourceLine own = ParseSourceLine();
    std::string chain = own.text;
    if (Take(",")) {
      Expect("function_name");
      ++next_;
      Expect(",");
      Expect("inlined_at");
      // This names only the call. If the call is in an inlined function itself, the rest of the chain is that of the
      // call's own .loc, which precedes.
      const SourceLine caller = ParseSourceLine();
      const auto outer = chains_.find(caller.key);
      chain += "<" + (outer == chains_.end() ? caller.text : outer->second);
    }
    chains_[own.key] = chain;
    const auto [found, is_new] = location_indices_.try_emplace(chain, uint32_t(kernel_.locations.size()));
    if (is_new) kernel_.locations.push_back(chain);
    location_ = found->second;
  }

  struct SourceLine {
    std::string text;
    std::array<uint32_t, 3> key;  // file, line and column
  };

  SourceLine ParseSourceLine() {
    const uint32_t file = Number(), line = Number(), column = Number();
    const auto found = files_.find(file);
    const std::string name = found == files_.end() ? "?" : found->second;
    return {name + ":" + std::to_string(line), {file, line, column}};
  }

  void ParsePragma() {
    const std::string text = Next();
    const std::string name = "\"used_bytes_mask ";
    if (text.rfind(name, 0) == 0) used_bytes_ = uint32_t(std::stoul(text.substr(name.size()), nullptr, 0));
    Expect(";");
  }

  void ParseInstruction() {
    Instruction instruction;
    instruction.ptx_line = Line();
    instruction.location = location_;
    if (Take("@")) {
      instruction.is_negated = Take("!");
      const Operand guard = FindRegister(Next());
      if (guard.kind != Operand::kRegister || guard.bytes != 0) Fail("the guard is not a predicate");
      instruction.guard = int32_t(guard.place);
    }
    const std::string opcode = Next();
    std::vector<Operand> operands;
    const size_t first = next_;
    if (opcode == "bra" || opcode == "bra.uni") {
      branches_.push_back({kernel_.code.size(), Next()});
    } else {
      while (Peek() != ";") {
        operands.push_back(ParseOperand());
        if (!Take(",") && !Take("|")) break;  // d|p: a result and a predicate
      }
    }
    next_ = Peek() == ";" ? next_ : first;
    if (!Decode(opcode, operands, kernel_.registers, &instruction)) Fail("the interpreter has no " + opcode);
    Expect(";");
    if (opcode.rfind("ld.", 0) == 0) instruction.used_bytes = std::exchange(used_bytes_, ~0u);
    kernel_.code.push_back(instruction);
  }

  Operand ParseOperand() {
    Operand operand;
    if (Take("{")) {
      operand.kind = Operand::kVector;
      do operand.elements.push_back(ParseOperand());
      while (Take(","));
      Expect("}");
    } else if (Take("[")) {
      operand.kind = Operand::kAddress;
      operand.elements.push_back(ParseOperand());
      if (Take("+")) {
        const bool is_negative = Take("-");
        operand.displacement = int32_t(std::stol(Next(), nullptr, 0)) * (is_negative ? -1 : 1);
      }
      Expect("]");
    } else if (Take("-")) {
      operand = Immediate(Next());
      operand.bits = ~operand.bits + 1;
    } else if (std::isdigit(static_cast<unsigned char>(Peek()[0]))) {
      operand = Immediate(Next());
    } else {
      operand = FindRegister(Next());
    }
    return operand;
  }

  // 12, 0x0c, 0f3F800000 (a float by its bits) and 0d... (a double).
  static Operand Immediate(const std::string& text) {
    Operand operand;
    operand.kind = Operand::kImmediate;
    const bool is_float = text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'd');
    operand.bits = is_float ? std::stoull(text.substr(2), nullptr, 16) : std::stoull(text, nullptr, 0);
    return operand;
  }

  // A register, a special register, or the address of a variable.
  Operand FindRegister(const std::string& name) {
    Operand operand;
    operand.kind = Operand::kRegister;
    const std::string stem = name.substr(0, name.find_last_not_of("0123456789") + 1);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      auto found = scope->registers.find(name);
      if (found == scope->registers.end()) {
        const auto range = scope->stems.find(stem);
        if (range == scope->stems.end() || stem == name) continue;
        found = scope->registers.insert({name, {range->second, false, 0}}).first;
      }
      Register& known = found->second;
      if (!known.is_placed) known.place = kernel_.registers.Add(known.bytes);
      known.is_placed = true;
      operand.bytes = known.bytes;
      operand.place = known.place;
      return operand;
    }
    if (name == "_") {
      operand.kind = Operand::kNone;
      return operand;
    }
    if (name[0] == '%') {
      operand.bytes = 4;
      operand.place = kernel_.registers.AddSpecial(name);
      return operand;
    }
    const auto symbol = symbols_.find(name);
    if (symbol == symbols_.end()) Fail("unknown name " + name);
    operand.kind = Operand::kImmediate;
    operand.bits = symbol->second;
    return operand;
  }

  const Module& module_;
  const std::map<uint32_t, std::string>& files_;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  Kernel kernel_;
  std::vector<Scope> scopes_ = std::vector<Scope>(1);
  std::unordered_map<std::string, uint32_t> symbols_;
  std::unordered_map<std::string, int32_t> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
  std::unordered_map<std::string, uint32_t> location_indices_;
  std::map<std::array<uint32_t, 3>, std::string> chains_;
  uint32_t location_ = 0, used_bytes_ = ~0u;
};

}  // namespace

Place RegisterLayout::Add(uint32_t bytes) {
  constexpr uint32_t kAlignment = 64;  // for vector instructions of the CPU
  const Place place = Place(size_);
  size_ += RoundUp(bytes ? bytes * kLanes : sizeof(Lanes), kAlignment);
  return place;
}

Place RegisterLayout::AddConstant(uint64_t bits, uint32_t bytes) {
  if (bytes == 0) bits = bits ? kAllLanes : 0;
  if (bytes > 0 && bytes < 8) bits &= (uint64_t{1} << 8 * bytes) - 1;
  const auto [found, is_new] = constant_places_.try_emplace({bits, bytes}, 0);
  if (is_new) {
    found->second = Add(bytes);
    constants_.push_back({found->second, bytes, bits});
  }
  return found->second;
}

Place RegisterLayout::AddSpecial(const std::string& name) {
  const auto [found, is_new] = specials_.try_emplace(name, 0);
  if (is_new) found->second = Add(4);
  return found->second;
}

Module::Module(std::string_view text) : text_(text) {
  line_starts_.push_back(0);
  for (size_t i = text.find('\n'); i != std::string_view::npos; i = text.find('\n', i + 1))
    line_starts_.push_back(i + 1);
  // A kernel's text goes on until the next kernel, or the names of the source files at the end. The parser stops at the
  // closing brace.
  size_t* end = nullptr;
  for (const size_t start : line_starts_) {
    std::string_view line = text.substr(start, text.find('\n', start) - start);
    if (line.rfind(".visible ", 0) == 0) line.remove_prefix(line.find(' ') + 1);
    const bool is_read = line.rfind(".entry ", 0) == 0 || line.rfind("\t.file", 0) == 0 || line.rfind(".file", 0) == 0;
    if (!is_read) continue;
    const size_t position = size_t(line.data() - text.data());
    const std::vector<Token> tokens = Tokens(text, position, position + line.size());
    if (end) *end = start;
    end = nullptr;
    if (tokens[0].text == ".entry") {
      auto& range = texts_[std::string(tokens[1].text)];
      range = {tokens[1].position, text.size()};
      end = &range.second;
    } else {
      const std::string_view path = tokens[2].text.substr(1, tokens[2].text.size() - 2);
      files_[uint32_t(std::stoul(std::string(tokens[1].text)))] = path.substr(path.rfind('/') + 1);
    }
  }
}

const Kernel& Module::Find(const std::string& name) {
  std::unique_ptr<Kernel>& kernel = parsed_[name];
  if (!kernel) {
    const auto [begin, end] = texts_.at(name);
    kernel = KernelParser(*this, files_, Tokens(text_, begin, end)).Parse();
  }
  return *kernel;
}

uint32_t Module::LineNumber(size_t position) const {
  const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), position);
  return uint32_t(after - line_starts_.begin());
}

std::string_view Module::Line(uint32_t number) const {
  const size_t start = line_starts_[number - 1];
  return std::string_view(text_).substr(start, text_.find('\n', start) - start);
}

}  // namespace ptx
