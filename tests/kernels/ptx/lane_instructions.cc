// Instructions that act on each lane by itself: a table of functions, d = f(a, b, ...). A bool is a predicate.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "instructions.h"
#include "interpreter.h"
#include "numbers.h"

namespace ptx {
namespace {

template <typename T>
constexpr uint32_t kBytes = std::is_same_v<T, bool> ? 0 : sizeof(T);

template <typename T>
T Get(Warp& warp, Place place, int lane) {
  if constexpr (std::is_same_v<T, bool>) {
    return Has(warp.Predicate(place), lane);
  } else {
    return warp.At<T>(place)[lane];
  }
}

template <typename F, typename D, typename... S, size_t... i>
void MapLanes(Warp& warp, const Instruction& instruction, Lanes lanes, std::index_sequence<i...>) {
  constexpr F f;
  if constexpr (std::is_same_v<D, bool>) {
    Lanes result = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      result |= Lanes(bool(f(Get<S>(warp, instruction.operands[i + 1], lane)...))) << lane;
    }
    Lanes& target = warp.Predicate(instruction.operands[0]);
    target = (target & ~lanes) | (result & lanes);
  } else {
    D result[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = f(Get<S>(warp, instruction.operands[i + 1], lane)...);
    D* target = warp.At<D>(instruction.operands[0]);
    if (lanes == kAllLanes) {
      std::memcpy(target, result, sizeof result);
    } else {
      for (int lane = 0; lane < kLanes; ++lane) target[lane] = Has(lanes, lane) ? result[lane] : target[lane];
    }
  }
}

template <typename F, typename D, typename... S>
void Map(Warp& warp, const Instruction& instruction, Lanes lanes) {
  MapLanes<F, D, S...>(warp, instruction, lanes, std::index_sequence_for<S...>());
}

struct Entry {
  Handler execute;
  std::vector<uint32_t> bytes;  // of the operands
};

class Table {
 public:
  // `F` is the type of a lambda without captures.
  template <typename D, typename... S, typename F>
  void Add(const std::string& opcode, F) {
    entries_[opcode] = {Map<F, D, S...>, {kBytes<D>, kBytes<S>...}};
  }

  const Entry* Find(const std::string& opcode) const {
    const auto found = entries_.find(opcode);
    return found == entries_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<std::string, Entry> entries_;
};

template <typename T>
void AddComparisons(Table& table, const std::string& type) {
  table.Add<bool, T, T>("setp.eq." + type, [](T a, T b) { return a == b; });
  table.Add<bool, T, T>("setp.ne." + type, [](T a, T b) { return a < b || a > b; });  // false of NaN
  table.Add<bool, T, T>("setp.lt." + type, [](T a, T b) { return a < b; });
  table.Add<bool, T, T>("setp.le." + type, [](T a, T b) { return a <= b; });
  table.Add<bool, T, T>("setp.gt." + type, [](T a, T b) { return a > b; });
  table.Add<bool, T, T>("setp.ge." + type, [](T a, T b) { return a >= b; });
}

template <typename T>
void AddIntegers(Table& table, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t kBits = 8 * sizeof(T);
  table.Add<U, U, U>("add." + type, [](U a, U b) { return U(a + b); });
  table.Add<U, U, U>("sub." + type, [](U a, U b) { return U(a - b); });
  table.Add<U, U, U>("mul.lo." + type, [](U a, U b) { return U(uint64_t(a) * b); });
  table.Add<U, U, U, U>("mad.lo." + type, [](U a, U b, U c) { return U(uint64_t(a) * b + c); });
  using Wider = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  table.Add<T, T, T>("mul.hi." + type, [](T a, T b) { return T(Wider(a) * Wider(b) >> kBits); });
  // Division by zero is unspecified. The quotient of the least number and -1 overflows.
  table.Add<T, T, T>("div." + type, [](T a, T b) {
    return b == 0 ? T(-1) : std::is_signed_v<T> && b == T(-1) ? T(U(0) - U(a)) : T(a / b);
  });
  table.Add<T, T, T>("rem." + type, [](T a, T b) {
    return b == 0 ? a : std::is_signed_v<T> && b == T(-1) ? T(0) : T(a % b);
  });
  table.Add<T, T, T>("min." + type, [](T a, T b) { return a < b ? a : b; });
  table.Add<T, T, T>("max." + type, [](T a, T b) { return a > b ? a : b; });
  table.Add<U, U>("neg." + type, [](U a) { return U(0 - a); });
  table.Add<T, T>("abs." + type, [](T a) { return a < 0 ? T(U(0) - U(a)) : a; });
  table.Add<T, T, uint32_t>("shr." + type, [](T a, uint32_t b) {
    return b < kBits ? T(a >> b) : a < 0 ? T(-1) : T(0);
  });
  AddComparisons<T>(table, type);
  if constexpr (sizeof(T) < 8) {
    using W = std::conditional_t<sizeof(T) == 4, int64_t, int32_t>;
    using Wide = std::conditional_t<std::is_signed_v<T>, W, std::make_unsigned_t<W>>;
    using UWide = std::make_unsigned_t<Wide>;
    table.Add<Wide, T, T>("mul.wide." + type, [](T a, T b) { return Wide(Wide(a) * Wide(b)); });
    table.Add<UWide, T, T, UWide>("mad.wide." + type,
                                  [](T a, T b, UWide c) { return UWide(UWide(Wide(a) * Wide(b)) + c); });
  }
}

template <typename U>
void AddBits(Table& table, const std::string& type) {
  constexpr uint32_t kBits = 8 * sizeof(U);
  table.Add<U, U, U>("and." + type, [](U a, U b) { return U(a & b); });
  table.Add<U, U, U>("or." + type, [](U a, U b) { return U(a | b); });
  table.Add<U, U, U>("xor." + type, [](U a, U b) { return U(a ^ b); });
  table.Add<U, U>("not." + type, [](U a) { return U(~a); });
  table.Add<U, U, uint32_t>("shl." + type, [](U a, uint32_t b) { return b < kBits ? U(a << b) : U(0); });
  table.Add<U, U, uint32_t>("shr." + type, [](U a, uint32_t b) { return b < kBits ? U(a >> b) : U(0); });
  table.Add<bool, U, U>("setp.eq." + type, [](U a, U b) { return a == b; });
  table.Add<bool, U, U>("setp.ne." + type, [](U a, U b) { return a != b; });
  table.Add<uint32_t, U>("popc." + type, [](U a) { return uint32_t(__builtin_popcountll(a)); });
  table.Add<uint32_t, U>("clz." + type, [](U a) { return a ? uint32_t(__builtin_clzll(a)) - (64 - kBits) : kBits; });
  if constexpr (sizeof(U) >= 4) {
    // b with the `length` low bits of a put in at `position`.
    table.Add<U, U, U, uint32_t, uint32_t>("bfi." + type, [](U a, U b, uint32_t position, uint32_t length) {
      position &= 0xff;
      length &= 0xff;
      if (length == 0 || position >= kBits) return b;
      const U ones = length >= kBits ? U(~U(0)) : U((U(1) << length) - 1), mask = U(ones << position);
      return U((b & ~mask) | (a << position & mask));
    });
  }
}

template <typename U>
void AddMoves(Table& table, const std::string& type) {
  table.Add<U, U>("mov." + type, [](U a) { return a; });
  table.Add<U, U, U, bool>("selp." + type, [](U a, U b, bool p) { return p ? a : b; });
}

template <typename T>
void AddFloats(Table& table, const std::string& type) {
  using U = UnsignedOf<T>;
  constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  for (const std::string rounding : {"", "rn."}) {
    table.Add<T, T, T>("add." + rounding + type, [](T a, T b) { return Canonical(a + b); });
    table.Add<T, T, T>("sub." + rounding + type, [](T a, T b) { return Canonical(a - b); });
    table.Add<T, T, T>("mul." + rounding + type, [](T a, T b) { return Canonical(a * b); });
  }
  table.Add<T, T, T>("div.rn." + type, [](T a, T b) { return Canonical(a / b); });
  table.Add<T, T, T, T>("fma.rn." + type, [](T a, T b, T c) { return Canonical(std::fma(a, b, c)); });
  table.Add<T, T, T>("add.rz." + type, [](T a, T b) { return AddTowardZero(a, b); });
  table.Add<T, T, T, T>("fma.rz." + type, [](T a, T b, T c) { return FmaTowardZero(a, b, c); });
  table.Add<T, T>("sqrt.rn." + type, [](T a) { return Canonical(std::sqrt(a)); });
  table.Add<T, T>("abs." + type, [](T a) { return FromBits<T>(U(ToBits(a) & ~kSign)); });
  table.Add<T, T>("neg." + type, [](T a) { return FromBits<T>(U(ToBits(a) ^ kSign)); });
  // The magnitude of b with the sign of a.
  table.Add<T, T, T>("copysign." + type,
                     [](T a, T b) { return FromBits<T>(U((ToBits(b) & ~kSign) | (ToBits(a) & kSign))); });
  // The number, if the other operand is NaN. -0 is less than +0.
  table.Add<T, T, T>("min." + type,
                     [](T a, T b) { return Canonical(b != b || a < b || (a == b && ToBits(a) & kSign) ? a : b); });
  table.Add<T, T, T>("max." + type,
                     [](T a, T b) { return Canonical(b != b || a > b || (a == b && !(ToBits(a) & kSign)) ? a : b); });
  table.Add<T, T>("cvt.rmi." + type + "." + type, [](T a) { return Canonical(std::floor(a)); });
  table.Add<T, T>("cvt.rpi." + type + "." + type, [](T a) { return Canonical(std::ceil(a)); });
  table.Add<T, T>("cvt.rzi." + type + "." + type, [](T a) { return Canonical(std::trunc(a)); });
  table.Add<T, T>("cvt.rni." + type + "." + type, [](T a) { return Canonical(std::nearbyint(a)); });
  AddComparisons<T>(table, type);
  // Those with u are true of NaN.
  table.Add<bool, T, T>("setp.equ." + type, [](T a, T b) { return !(a < b || a > b); });
  table.Add<bool, T, T>("setp.neu." + type, [](T a, T b) { return !(a == b); });
  table.Add<bool, T, T>("setp.ltu." + type, [](T a, T b) { return !(a >= b); });
  table.Add<bool, T, T>("setp.leu." + type, [](T a, T b) { return !(a > b); });
  table.Add<bool, T, T>("setp.gtu." + type, [](T a, T b) { return !(a <= b); });
  table.Add<bool, T, T>("setp.geu." + type, [](T a, T b) { return !(a < b); });
  table.Add<bool, T, T>("setp.num." + type, [](T a, T b) { return a == a && b == b; });
  table.Add<bool, T, T>("setp.nan." + type, [](T a, T b) { return a != a || b != b; });
}

template <typename I, typename T>
void AddFloatConversions(Table& table, const std::string& integer, const std::string& type) {
  table.Add<I, T>("cvt.rzi." + integer + "." + type, [](T a) { return ToInteger<I>(std::trunc(a)); });
  table.Add<I, T>("cvt.rmi." + integer + "." + type, [](T a) { return ToInteger<I>(std::floor(a)); });
  table.Add<I, T>("cvt.rpi." + integer + "." + type, [](T a) { return ToInteger<I>(std::ceil(a)); });
  table.Add<I, T>("cvt.rni." + integer + "." + type, [](T a) { return ToInteger<I>(std::nearbyint(a)); });
  table.Add<T, I>("cvt.rn." + type + "." + integer, [](I a) { return T(a); });
}

// Bytes are in registers of 16 bits. A source may be the low part of a wider register: "opcode/bytes".
template <typename D, typename S>
void AddIntegerConversion(Table& table, const std::string& to, const std::string& from) {
  using InD = std::conditional_t<sizeof(D) == 1, uint16_t, D>;
  using InS = std::conditional_t<sizeof(S) == 1, uint16_t, S>;
  const std::string opcode = "cvt." + to + "." + from;
  table.Add<InD, InS>(opcode, [](InS a) { return InD(D(S(a))); });
  if constexpr (sizeof(InS) < 4) table.Add<InD, uint32_t>(opcode + "/4", [](uint32_t a) { return InD(D(S(a))); });
  if constexpr (sizeof(InS) < 8) table.Add<InD, uint64_t>(opcode + "/8", [](uint64_t a) { return InD(D(S(a))); });
}

template <typename F>
void ForEachIntegerType(const F& f) {
  f(int16_t(), "s16");
  f(uint16_t(), "u16");
  f(int32_t(), "s32");
  f(uint32_t(), "u32");
  f(int64_t(), "s64");
  f(uint64_t(), "u64");
}

Table MakeTable() {
  Table table;
  ForEachIntegerType([&](auto tag, const std::string& type) {
    using T = decltype(tag);
    AddIntegers<T>(table, type);
    AddMoves<T>(table, type);
    AddFloatConversions<T, float>(table, type, "f32");
    AddFloatConversions<T, double>(table, type, "f64");
    ForEachIntegerType(
        [&](auto other, const std::string& from) { AddIntegerConversion<T, decltype(other)>(table, type, from); });
    AddIntegerConversion<T, int8_t>(table, type, "s8");
    AddIntegerConversion<T, uint8_t>(table, type, "u8");
    AddIntegerConversion<int8_t, T>(table, "s8", type);
    AddIntegerConversion<uint8_t, T>(table, "u8", type);
  });
  AddBits<uint16_t>(table, "b16");
  AddBits<uint32_t>(table, "b32");
  AddBits<uint64_t>(table, "b64");
  AddMoves<uint16_t>(table, "b16");
  AddMoves<uint32_t>(table, "b32");
  AddMoves<uint64_t>(table, "b64");
  AddMoves<uint32_t>(table, "f32");
  AddMoves<uint64_t>(table, "f64");
  AddFloats<float>(table, "f32");
  AddFloats<double>(table, "f64");
  table.Add<bool, bool, bool>("and.pred", [](bool a, bool b) { return a && b; });
  table.Add<bool, bool, bool>("or.pred", [](bool a, bool b) { return a || b; });
  table.Add<bool, bool, bool>("xor.pred", [](bool a, bool b) { return a != b; });
  table.Add<bool, bool>("not.pred", [](bool a) { return !a; });
  table.Add<bool, bool>("mov.pred", [](bool a) { return a; });
  table.Add<float, float, float>("div.approx.f32", [](float a, float b) { return DivideApproximately(a, b); });
  table.Add<float, float>("rcp.approx.ftz.f32",
                          [](float a) { return FlushSubnormal(Canonical(1 / FlushSubnormal(a))); });
  table.Add<double, float>("cvt.f64.f32", [](float a) { return double(a); });
  table.Add<float, double>("cvt.rn.f32.f64", [](double a) { return Canonical(float(a)); });
  table.Add<float, uint16_t>("cvt.f32.f16", [](uint16_t a) { return FromF16(a); });
  table.Add<float, uint16_t>("cvt.f32.bf16", [](uint16_t a) { return FromBF16(a); });
  table.Add<uint16_t, float>("cvt.rn.f16.f32", [](float a) { return ToF16(a); });
  table.Add<uint16_t, float>("cvt.rn.bf16.f32", [](float a) { return ToBF16(a); });
  table.Add<uint64_t, uint64_t>("cvta.to.global.u64", [](uint64_t a) { return a; });
  return table;
}

// A mov between a register and a pair of registers of half its size, the lower half first.

template <typename Whole, typename Half>
void Unpack(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const Whole whole = warp.At<Whole>(instruction.operands[2])[lane];
    warp.At<Half>(instruction.operands[0])[lane] = Half(whole);
    warp.At<Half>(instruction.operands[1])[lane] = Half(whole >> 8 * sizeof(Half));
  }
}

template <typename Whole, typename Half>
void Pack(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const Half low = warp.At<Half>(instruction.operands[0])[lane], high = warp.At<Half>(instruction.operands[1])[lane];
    warp.At<Whole>(instruction.operands[2])[lane] = Whole(Whole(low) | Whole(high) << 8 * sizeof(Half));
  }
}

// mov d, {a, b} or mov {d, e}, a.
bool DecodePairMove(const std::vector<std::string>& words, const std::vector<Operand>& operands,
                    RegisterLayout& registers, Instruction* out) {
  const bool is_unpack = operands[0].kind == Operand::kVector, is_wide = words[1] == "b64";
  const Operand &pair = operands[is_unpack ? 0 : 1], &whole = operands[is_unpack ? 1 : 0];
  if ((!is_wide && words[1] != "b32") || pair.elements.size() != 2) return false;
  bool ok = true;
  for (size_t i = 0; i < 2; ++i) out->operands[i] = PlaceOf(pair.elements[i], is_wide ? 4 : 2, registers, &ok);
  out->operands[2] = PlaceOf(whole, is_wide ? 8 : 4, registers, &ok);
  out->execute = is_unpack ? (is_wide ? Unpack<uint64_t, uint32_t> : Unpack<uint32_t, uint16_t>)
                           : (is_wide ? Pack<uint64_t, uint32_t> : Pack<uint32_t, uint16_t>);
  return ok;
}

bool DecodeFromTable(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                     Instruction* out) {
  static const Table table = MakeTable();
  const Entry* entry = table.Find(opcode);
  if (!entry || entry->bytes.size() != operands.size()) return false;
  if (StartsWith(opcode, "cvt.") && operands[1].kind == Operand::kRegister && operands[1].bytes > entry->bytes[1]) {
    entry = table.Find(opcode + "/" + std::to_string(operands[1].bytes));
    if (!entry) return false;
  }
  bool ok = true;
  out->execute = entry->execute;
  for (size_t i = 0; i < operands.size(); ++i) out->operands[i] = PlaceOf(operands[i], entry->bytes[i], registers, &ok);
  return ok;
}

}  // namespace

bool DecodeLaneInstruction(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                           Instruction* out) {
  const std::vector<std::string> words = Words(opcode);
  if (words[0] == "mov" && operands.size() == 2 &&
      (operands[0].kind == Operand::kVector || operands[1].kind == Operand::kVector)) {
    return DecodePairMove(words, operands, registers, out);
  }
  return DecodeFromTable(opcode, operands, registers, out);
}

}  // namespace ptx
