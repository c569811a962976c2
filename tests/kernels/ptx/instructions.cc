// The instructions, by the PTX ISA. Those that act on each lane by itself come from a table of functions.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "machine.h"
#include "numbers.h"
#include "tensor_core.h"

namespace ptx {
namespace {

bool Has(Lanes lanes, int lane) { return lanes >> lane & 1; }

// ---- d = f(a, b, ...), lane by lane. A bool is a predicate.

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
void AddIntegers(Table& table, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  constexpr uint32_t kBits = 8 * sizeof(T);
  table.Add<U, U, U>("add." + type, [](U a, U b) { return U(a + b); });
  table.Add<U, U, U>("sub." + type, [](U a, U b) { return U(a - b); });
  table.Add<U, U, U>("mul.lo." + type, [](U a, U b) { return U(uint64_t(a) * b); });
  table.Add<U, U, U, U>("mad.lo." + type, [](U a, U b, U c) { return U(uint64_t(a) * b + c); });
  table.Add<T, T, T>("mul.hi." + type, [](T a, T b) { return T(__int128(a) * b >> kBits); });
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
  table.Add<bool, T, T>("setp.eq." + type, [](T a, T b) { return a == b; });
  table.Add<bool, T, T>("setp.ne." + type, [](T a, T b) { return a != b; });
  table.Add<bool, T, T>("setp.lt." + type, [](T a, T b) { return a < b; });
  table.Add<bool, T, T>("setp.le." + type, [](T a, T b) { return a <= b; });
  table.Add<bool, T, T>("setp.gt." + type, [](T a, T b) { return a > b; });
  table.Add<bool, T, T>("setp.ge." + type, [](T a, T b) { return a >= b; });
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
  table.Add<bool, T, T>("setp.eq." + type, [](T a, T b) { return a == b; });
  table.Add<bool, T, T>("setp.ne." + type, [](T a, T b) { return a < b || a > b; });
  table.Add<bool, T, T>("setp.lt." + type, [](T a, T b) { return a < b; });
  table.Add<bool, T, T>("setp.le." + type, [](T a, T b) { return a <= b; });
  table.Add<bool, T, T>("setp.gt." + type, [](T a, T b) { return a > b; });
  table.Add<bool, T, T>("setp.ge." + type, [](T a, T b) { return a >= b; });
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
  // The first operand becomes the upper half.
  table.Add<uint32_t, float, float>("cvt.rn.f16x2.f32",
                                    [](float a, float b) { return uint32_t(ToF16(a)) << 16 | ToF16(b); });
  table.Add<uint32_t, float, float>("cvt.rn.bf16x2.f32",
                                    [](float a, float b) { return uint32_t(ToBF16(a)) << 16 | ToBF16(b); });
  table.Add<uint32_t, float>("cvt.rna.tf32.f32", [](float a) { return ToTf32(a); });
  table.Add<uint64_t, uint64_t>("cvta.to.global.u64", [](uint64_t a) { return a; });
  return table;
}

// ---- Memory. Operands 0 to 3 are what is loaded or stored, operand 4 is the address.

constexpr int kAddress = 4;

template <typename Address>
void GetAddresses(Warp& warp, const Instruction& instruction, int operand, uint64_t (&addresses)[kLanes]) {
  for (int lane = 0; lane < kLanes; ++lane) {
    addresses[lane] = warp.At<Address>(instruction.operands[operand])[lane];
    if (operand == kAddress) addresses[lane] += uint64_t(int64_t(instruction.displacement));
  }
}

// Element is the type in memory, Register the one in the register file.
template <Space space, typename Element, typename Register, typename Address, Access access>
void Load(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint64_t addresses[kLanes];
  GetAddresses<Address>(warp, instruction, kAddress, addresses);
  warp.launch.CheckAccess(warp, instruction, lanes, space, access, addresses, sizeof(Element) * instruction.count);
  const uint8_t* memory = warp.launch.Memory(space);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    for (int i = 0; i < instruction.count; ++i) {
      Element value;
      std::memcpy(&value, memory + addresses[lane] + size_t(i) * sizeof value, sizeof value);
      warp.At<Register>(instruction.operands[i])[lane] = Register(value);
    }
  }
}

template <Space space, typename Element, typename Register, typename Address>
void Store(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint64_t addresses[kLanes];
  GetAddresses<Address>(warp, instruction, kAddress, addresses);
  warp.launch.CheckAccess(warp, instruction, lanes, space, Access::kWrite, addresses,
                          sizeof(Element) * instruction.count);
  uint8_t* memory = warp.launch.Memory(space);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    for (int i = 0; i < instruction.count; ++i) {
      const Element value = Element(warp.At<Register>(instruction.operands[i])[lane]);
      std::memcpy(memory + addresses[lane] + size_t(i) * sizeof value, &value, sizeof value);
    }
  }
}

// atom d, [address], value: the lanes take turns in an order of their own.
void AtomicAdd(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint64_t addresses[kLanes];
  GetAddresses<uint64_t>(warp, instruction, kAddress, addresses);
  warp.launch.CheckAccess(warp, instruction, lanes, Space::kGlobal, Access::kAtomic, addresses, 4);
  const int turn = int(warp.launch.Random() % kLanes);
  for (int i = 0; i < kLanes; ++i) {
    const int lane = i ^ turn;
    if (!Has(lanes, lane)) continue;
    uint32_t value;
    auto* address = reinterpret_cast<uint8_t*>(addresses[lane]);
    std::memcpy(&value, address, sizeof value);
    const uint32_t sum = value + warp.At<uint32_t>(instruction.operands[1])[lane];
    std::memcpy(address, &sum, sizeof sum);
    warp.At<uint32_t>(instruction.operands[0])[lane] = value;
  }
}

// cp.async [target], [source], 16, count: reads `count` bytes, and fills the rest with zeros. Operands 5 and 6 are the
// source and the count.
void CopyAsync(Warp& warp, const Instruction& instruction, Lanes lanes) {
  constexpr uint32_t kCopyBytes = sizeof AsyncCopy::data;
  uint64_t targets[kLanes], sources[kLanes];
  GetAddresses<uint32_t>(warp, instruction, kAddress, targets);
  GetAddresses<uint64_t>(warp, instruction, kAddress + 1, sources);
  Launch& launch = warp.launch;
  launch.CheckAccess(warp, instruction, lanes, Space::kShared, Access::kAsyncWrite, targets, kCopyBytes);
  const uint32_t* counts = warp.At<uint32_t>(instruction.operands[kAddress + 2]);
  Lanes reading = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    if (counts[lane] != 0 && counts[lane] != kCopyBytes) {
      launch.Fail(warp, instruction, lane, "copies " + std::to_string(counts[lane]) + " of 16 bytes");
    }
    if (counts[lane]) reading |= Lanes{1} << lane;
  }
  launch.CheckAccess(warp, instruction, reading, Space::kGlobal, Access::kAsyncRead, sources, kCopyBytes);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    AsyncCopy copy = {uint32_t(targets[lane]), warp.copy_groups[lane], {}};
    if (Has(reading, lane)) std::memcpy(copy.data, reinterpret_cast<const uint8_t*>(sources[lane]), kCopyBytes);
    launch.AddCopy(warp, lane, copy);
  }
}

template <bool kCommits, bool kWaits>
void WaitForCopies(Warp& warp, const Instruction& instruction, Lanes lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    if (kCommits) ++warp.copy_groups[lane];
    if (kWaits) warp.launch.CompleteCopies(warp, lane, warp.At<uint32_t>(instruction.operands[0])[lane]);
  }
}

// Operands 0 to 3 receive the four matrices; lanes 8i to 8i + 7 have the addresses of the rows of matrix i.
template <bool kIsTransposed>
void LoadMatrices(Warp& warp, const Instruction& instruction, Lanes lanes) {
  constexpr int kRows = 8, kRowBytes = 16;
  uint64_t addresses[kLanes];
  GetAddresses<uint32_t>(warp, instruction, kAddress, addresses);
  warp.launch.CheckAccess(warp, instruction, lanes, Space::kShared, Access::kRead, addresses, kRowBytes);
  const uint8_t* memory = warp.launch.Memory(Space::kShared);
  uint32_t words[4][kLanes];
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t elements[kRows][kRows];
    for (int row = 0; row < kRows; ++row)
      std::memcpy(elements[row], memory + addresses[matrix * kRows + row], kRowBytes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      const uint32_t low = kIsTransposed ? elements[j][i] : elements[i][j];
      const uint32_t high = kIsTransposed ? elements[j + 1][i] : elements[i][j + 1];
      words[matrix][lane] = low | high << 16;
    }
  }
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::memcpy(warp.At<uint32_t>(instruction.operands[matrix]), words[matrix], sizeof words[matrix]);
  }
}

// ---- Other collective instructions.

// mma d, a, b, c: operands 0 to 3 are d, 4 to 7 a, 8 and 9 b, 10 to 13 c.
template <MmaType type>
void Mma(Warp& warp, const Instruction& instruction, Lanes) {
  uint32_t a[4][kLanes], b[2][kLanes];
  float c[4][kLanes];
  for (int i = 0; i < 4; ++i) std::memcpy(a[i], warp.At<uint32_t>(instruction.operands[4 + i]), sizeof a[i]);
  for (int i = 0; i < 2; ++i) std::memcpy(b[i], warp.At<uint32_t>(instruction.operands[8 + i]), sizeof b[i]);
  for (int i = 0; i < 4; ++i) std::memcpy(c[i], warp.At<float>(instruction.operands[10 + i]), sizeof c[i]);
  MultiplyAccumulate<type>(a, b, c);
  for (int i = 0; i < 4; ++i) std::memcpy(warp.At<float>(instruction.operands[i]), c[i], sizeof c[i]);
  ++warp.launch.counters().mma[kMmaNames[int(type)]];
}

enum class Shuffle { kUp, kDown, kButterfly, kIndex };

// shfl d|p, a, b, c, members: lane b of the segment, or b lanes away; c has the segment's mask and last lane.
template <Shuffle mode>
void RunShuffle(Warp& warp, const Instruction& instruction, Lanes lanes) {
  uint32_t result[kLanes] = {};
  Lanes in_range = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (!Has(lanes, lane)) continue;
    const int b = int(warp.At<uint32_t>(instruction.operands[3])[lane] & 31);
    const int c = int(warp.At<uint32_t>(instruction.operands[4])[lane]);
    const int segment = c >> 8 & 31, last = (lane & segment) | (c & 31 & ~segment);
    int source = lane;
    if (mode == Shuffle::kUp) source = lane - b;
    if (mode == Shuffle::kDown) source = lane + b;
    if (mode == Shuffle::kButterfly) source = lane ^ b;
    if (mode == Shuffle::kIndex) source = (lane & segment) | (b & ~segment);
    const bool is_in_range = mode == Shuffle::kUp ? source >= last : source <= last;
    if (!is_in_range) source = lane;
    if (!Has(lanes, source)) warp.launch.Fail(warp, instruction, lane, "shuffles from a lane that does not take part");
    in_range |= Lanes{is_in_range} << lane;
    result[lane] = warp.At<uint32_t>(instruction.operands[2])[source];
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (Has(lanes, lane)) warp.At<uint32_t>(instruction.operands[0])[lane] = result[lane];
  }
  Lanes& predicate = warp.Predicate(instruction.operands[1]);
  predicate = (predicate & ~lanes) | in_range;
}

void Ballot(Warp& warp, const Instruction& instruction, Lanes lanes) {
  const Lanes votes = warp.Predicate(instruction.operands[1]) & lanes;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (Has(lanes, lane)) warp.At<uint32_t>(instruction.operands[0])[lane] = votes;
  }
}

void WarpBarrier(Warp& warp, const Instruction&, Lanes lanes) {
  if (lanes != warp.exist) return;
  ++warp.barriers;
  warp.diverged_at = -1;
}

// ---- mov between a register and a pair of registers of half its size, the lower half first.

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

// ---- Decoding.

std::vector<std::string> opcodes;
std::unordered_map<std::string, uint16_t> opcode_numbers;
std::vector<int> opcode_classes;

std::vector<std::string> Words(const std::string& opcode) {
  std::vector<std::string> words;
  for (size_t start = 0; start <= opcode.size();) {
    const size_t end = std::min(opcode.find('.', start), opcode.size());
    words.push_back(opcode.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

bool StartsWith(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

int ClassOf(const std::string& opcode, const std::vector<std::string>& words) {
  const auto find = [](const char* name) {
    for (int i = 0; i < kClasses; ++i) {
      if (std::strcmp(kClassNames[i], name) == 0) return i;
    }
    throw std::logic_error(name);
  };
  const std::string &name = words[0], &type = words.back();
  if (name == "mma" || name == "ldmatrix") return find(name == "mma" ? "matrix" : "ldmatrix");
  if (name == "cp") return find("async copy");
  if (name == "atom") return find("atomic");
  if (name == "bar" || name == "barrier") return find("barrier");
  if (name == "shfl" || name == "vote") return find("shuffle");
  if (name == "bra" || name == "ret" || name == "exit") return find("branch");
  if (StartsWith(opcode, "ld.param")) return find("parameter");
  if (name == "ld") return find(words[1] == "shared" ? "shared load" : "global load");
  if (name == "st") return find(words[1] == "shared" ? "shared store" : "global store");
  if (name == "mov" || name == "cvta") return find("move");
  if (name == "cvt") return find("conversion");
  return find(type[0] == 'f' ? "floating" : "integer");
}

uint16_t NumberOf(const std::string& opcode, const std::vector<std::string>& words) {
  const auto [found, is_new] = opcode_numbers.try_emplace(opcode, uint16_t(opcodes.size()));
  if (is_new) {
    opcodes.push_back(opcode);
    opcode_classes.push_back(ClassOf(opcode, words));
  }
  return found->second;
}

// The place of an operand of `bytes`. Sets *ok to false if it has another width.
Place PlaceOf(const Operand& operand, uint32_t bytes, RegisterLayout& registers, bool* ok) {
  if (operand.kind == Operand::kImmediate) return registers.AddConstant(operand.bits, bytes);
  if (operand.kind == Operand::kNone) return registers.Add(bytes);  // a result that is not used
  if (operand.kind != Operand::kRegister || operand.bytes != bytes) *ok = false;
  return operand.place;
}

template <Space space, typename Address, Access access>
Handler MemoryHandler(bool is_load, char kind, uint32_t memory_bytes, uint32_t register_bytes) {
  const auto make = [&](auto element, auto reg) -> Handler {
    using Element = decltype(element);
    using Register = decltype(reg);
    return is_load ? Load<space, Element, Register, Address, access> : Store<space, Element, Register, Address>;
  };
  const bool is_signed = kind == 's';  // a load extends the sign
  switch (memory_bytes * 16 + register_bytes) {
    case 0x12:
      return is_signed ? make(int8_t(), int16_t()) : make(uint8_t(), uint16_t());
    case 0x14:
      return is_signed ? make(int8_t(), int32_t()) : make(uint8_t(), uint32_t());
    case 0x22:
      return make(uint16_t(), uint16_t());
    case 0x24:
      return is_signed ? make(int16_t(), int32_t()) : make(uint16_t(), uint32_t());
    case 0x44:
      return make(uint32_t(), uint32_t());
    case 0x48:
      return is_signed ? make(int32_t(), int64_t()) : make(uint32_t(), uint64_t());
    case 0x88:
      return make(uint64_t(), uint64_t());
    default:
      return nullptr;
  }
}

// Sets the address operand. Returns its bytes, or 0 if it is none.
uint32_t DecodeAddress(const Operand& address, uint32_t immediate_bytes, RegisterLayout& registers, Instruction* out) {
  if (address.kind != Operand::kAddress) return 0;
  const Operand& base = address.elements[0];
  const uint32_t bytes = base.kind == Operand::kImmediate ? immediate_bytes : base.bytes;
  bool ok = true;
  out->operands[kAddress] = PlaceOf(base, bytes, registers, &ok);
  out->displacement = address.displacement;
  return ok ? bytes : 0;
}

bool DecodeLoadOrStore(const std::vector<std::string>& words, const std::vector<Operand>& operands,
                       RegisterLayout& registers, Instruction* out) {
  if (operands.size() != 2) return false;
  const bool is_load = words[0] == "ld";
  const Operand &address = operands[is_load ? 1 : 0], &data = operands[is_load ? 0 : 1];
  const std::string &space = words[1], &type = words.back();
  bool is_constant = false;
  for (size_t i = 2; i + 1 < words.size(); ++i) {
    is_constant |= words[i] == "nc";
    if (words[i] != "nc" && words[i] != "v2" && words[i] != "v4") return false;
  }
  const std::vector<Operand> elements = data.kind == Operand::kVector ? data.elements : std::vector<Operand>{data};
  const uint32_t memory_bytes = uint32_t(std::stoul(type.substr(1))) / 8;
  uint32_t register_bytes = std::max(memory_bytes, 2u);
  for (const Operand& element : elements) {
    if (element.kind == Operand::kRegister) register_bytes = element.bytes;
  }
  if (elements.size() > 4) return false;
  bool ok = true;
  out->count = uint8_t(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    out->operands[i] = PlaceOf(elements[i], register_bytes, registers, &ok);
  }
  const uint32_t address_bytes = DecodeAddress(address, space == "global" ? 8 : 4, registers, out);
  if (!ok || address_bytes == 0) return false;
  const auto decode = [&](auto handler4, auto handler8) {
    const auto handler = address_bytes == 8 ? handler8 : handler4;
    out->execute = handler(is_load, type[0], memory_bytes, register_bytes);
    return out->execute != nullptr;
  };
  if (space == "param") {
    return decode(MemoryHandler<Space::kParameter, uint32_t, Access::kRead>,
                  MemoryHandler<Space::kParameter, uint64_t, Access::kRead>);
  }
  if (space == "shared") {
    return decode(MemoryHandler<Space::kShared, uint32_t, Access::kRead>,
                  MemoryHandler<Space::kShared, uint64_t, Access::kRead>);
  }
  if (space != "global" || address_bytes != 8) return false;
  out->execute = (is_constant ? MemoryHandler<Space::kGlobal, uint64_t, Access::kConstantRead>
                              : MemoryHandler<Space::kGlobal, uint64_t, Access::kRead>)(is_load, type[0], memory_bytes,
                                                                                        register_bytes);
  return out->execute != nullptr;
}

bool DecodeCopy(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                Instruction* out) {
  bool ok = true;
  if (opcode == "cp.async.cg.shared.global") {
    if (operands.size() != 4 || operands[1].kind != Operand::kAddress || operands[2].bits != 16) return false;
    out->execute = CopyAsync;
    out->operands[kAddress + 1] = PlaceOf(operands[1].elements[0], 8, registers, &ok);
    out->operands[kAddress + 2] = PlaceOf(operands[3], 4, registers, &ok);
    return DecodeAddress(operands[0], 4, registers, out) == 4 && ok && operands[1].displacement == 0;
  }
  out->operands[0] = registers.AddConstant(operands.empty() ? 0 : operands[0].bits, 4);
  out->execute = opcode == "cp.async.wait_all"       ? WaitForCopies<true, true>
                 : opcode == "cp.async.wait_group"   ? WaitForCopies<false, true>
                 : opcode == "cp.async.commit_group" ? WaitForCopies<true, false>
                                                     : nullptr;
  return out->execute != nullptr;
}

bool DecodeLdmatrix(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
                    Instruction* out) {
  const bool is_transposed = opcode == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16";
  if (!is_transposed && opcode != "ldmatrix.sync.aligned.m8n8.x4.shared.b16") return false;
  if (operands.size() != 2 || operands[0].elements.size() != 4) return false;
  bool ok = true;
  for (int i = 0; i < 4; ++i) out->operands[i] = PlaceOf(operands[0].elements[size_t(i)], 4, registers, &ok);
  out->control = Control::kCollective;
  out->is_aligned = true;
  out->execute = is_transposed ? LoadMatrices<true> : LoadMatrices<false>;
  return DecodeAddress(operands[1], 4, registers, out) == 4 && ok;
}

bool DecodeMma(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
               Instruction* out) {
  const std::string start = "mma.sync.aligned.";
  const std::string shape = StartsWith(opcode, start.c_str()) ? opcode.substr(start.size()) : "";
  out->execute = shape == "m16n8k16.row.col.f32.f16.f16.f32"     ? Mma<MmaType::kF16>
                 : shape == "m16n8k16.row.col.f32.bf16.bf16.f32" ? Mma<MmaType::kBF16>
                 : shape == "m16n8k8.row.col.f32.tf32.tf32.f32"  ? Mma<MmaType::kTf32>
                                                                 : nullptr;
  if (!out->execute || operands.size() != 4) return false;
  out->control = Control::kCollective;
  out->is_aligned = true;
  bool ok = true;
  int count = 0;
  for (const Operand& operand : operands) {
    for (const Operand& element : operand.elements) {
      if (count == kMaxOperands) return false;
      out->operands[count++] = PlaceOf(element, 4, registers, &ok);
    }
  }
  return ok && count == kMaxOperands;
}

bool DecodeShuffle(const std::vector<std::string>& words, const std::vector<Operand>& operands,
                   RegisterLayout& registers, Instruction* out) {
  const bool has_predicate = operands.size() == 6;
  if ((operands.size() != 5 && !has_predicate) || words.size() != 4 || words[3] != "b32") return false;
  const std::string& mode = words[2];
  out->execute = mode == "up"     ? RunShuffle<Shuffle::kUp>
                 : mode == "down" ? RunShuffle<Shuffle::kDown>
                 : mode == "bfly" ? RunShuffle<Shuffle::kButterfly>
                 : mode == "idx"  ? RunShuffle<Shuffle::kIndex>
                                  : nullptr;
  out->control = Control::kCollective;
  bool ok = out->execute != nullptr;
  out->operands[0] = PlaceOf(operands[0], 4, registers, &ok);
  out->operands[1] = has_predicate ? PlaceOf(operands[1], 0, registers, &ok) : registers.Add(0);
  for (size_t i = 2; i < 5; ++i) out->operands[i] = PlaceOf(operands[has_predicate ? i : i - 1], 4, registers, &ok);
  out->members = int32_t(PlaceOf(operands.back(), 4, registers, &ok));
  return ok;
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

const std::vector<std::string>& Opcodes() { return opcodes; }
int OpcodeClass(uint16_t opcode) { return opcode_classes[opcode]; }

bool Decode(const std::string& opcode, const std::vector<Operand>& operands, RegisterLayout& registers,
            Instruction* out) {
  const std::vector<std::string> words = Words(opcode);
  out->opcode = NumberOf(opcode, words);
  const std::string& name = words[0];
  if (opcode == "bra" || opcode == "bra.uni") {
    out->control = Control::kBranch;
    return true;
  }
  if (opcode == "ret" || opcode == "exit") {
    out->control = Control::kExit;
    return true;
  }
  if (opcode == "bar.sync" || opcode == "barrier.sync") {
    out->control = Control::kBlockBarrier;
    return operands.size() == 1 && operands[0].kind == Operand::kImmediate && operands[0].bits == 0;
  }
  if (name == "ld" || name == "st") return DecodeLoadOrStore(words, operands, registers, out);
  if (name == "cp") return DecodeCopy(opcode, operands, registers, out);
  if (name == "ldmatrix") return DecodeLdmatrix(opcode, operands, registers, out);
  if (name == "mma") return DecodeMma(opcode, operands, registers, out);
  if (name == "shfl") return DecodeShuffle(words, operands, registers, out);
  bool ok = true;
  if (opcode == "atom.global.add.u32" && operands.size() == 3) {
    out->execute = AtomicAdd;
    out->operands[0] = PlaceOf(operands[0], 4, registers, &ok);
    out->operands[1] = PlaceOf(operands[2], 4, registers, &ok);
    return DecodeAddress(operands[1], 8, registers, out) == 8 && ok;
  }
  if (opcode == "vote.sync.ballot.b32" && operands.size() == 3) {
    out->control = Control::kCollective;
    out->execute = Ballot;
    out->operands[0] = PlaceOf(operands[0], 4, registers, &ok);
    out->operands[1] = PlaceOf(operands[1], 0, registers, &ok);
    out->members = int32_t(PlaceOf(operands[2], 4, registers, &ok));
    return ok;
  }
  if (opcode == "bar.warp.sync" && operands.size() == 1) {
    out->control = Control::kCollective;
    out->execute = WarpBarrier;
    out->members = int32_t(PlaceOf(operands[0], 4, registers, &ok));
    return ok;
  }
  if (name == "mov" && operands.size() == 2 &&
      (operands[0].kind == Operand::kVector || operands[1].kind == Operand::kVector)) {
    return DecodePairMove(words, operands, registers, out);
  }
  return DecodeFromTable(opcode, operands, registers, out);
}

}  // namespace ptx
