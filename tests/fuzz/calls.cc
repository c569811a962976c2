// Decodes calls from bytes: the bytes choose a handler, a valid call of it, and then some changes of the call.
#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <map>
#include <sstream>
#include <utility>

#include "call.h"
#include "deform_conv/fused.h"

namespace fuzz {

namespace {

constexpr int64_t k32 = INT32_MAX, k64 = INT64_MAX, kOne = 1;

// Sizes that overflow 32 or 64 bits, themselves or in products, or almost do.
const std::vector<int64_t> kExtremeSizes = {0,       1,       -1,         (1 << 15) + 1, (1 << 24) + 1, k32 - 1,
                                            k32,     k32 + 1, kOne << 32, kOne << 40,    kOne << 47,    kOne << 61,
                                            k64 - 1, k64,     INT32_MIN,  INT64_MIN};

constexpr auto kF16 = XLA_FFI_DataType_F16, kBF16 = XLA_FFI_DataType_BF16, kF32 = XLA_FFI_DataType_F32,
               kF64 = XLA_FFI_DataType_F64, kS32 = XLA_FFI_DataType_S32;

// Product and Sum may overflow, which is defined for unsigned integers.
int64_t Product(std::initializer_list<int64_t> sizes) {
  uint64_t product = 1;
  for (const int64_t size : sizes) product *= uint64_t(size);
  return int64_t(product);
}
int64_t Sum(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }

// A handler. Its operands and results are words: a type, a name of kShapes, and after "?" what decides whether it is
// passed: the name of a boolean attribute, or nothing if only the number of operands says so.
//
// Types: T of the data, A its accumulator, C of the columns' cotangents, D of d_x, Y of a result (T or float32), W T or
// A, F float32, I int32. Lower case: a workspace.
class CallBuilder;
struct Handler {
  using Step = void (CallBuilder::*)();
  const char* name;
  Step choose_sizes;
  const char *operands, *results;
  Step between = nullptr, choose_rest = nullptr;  // choose what the bytes after the operands, or the results, decide
};

// The words of a shape are dimensions: each is the product of the sizes of its letters and of its digits. One in
// parentheses is present only in windows of an aggregation.
//
// In convolutions: n images of the part, N of x, P of the positions; h and w: of x; r and q: of the part, R rows of the
// positions; k taps, g offset groups, G feature groups, c channels, f features; d: channels of a feature group; i
// images of sorted samples, s starts of cells, v 32-bit elements of a sorted sample, S rows of sorted samples. In
// poolings: b batches, n images, p RoIs, m classes, f features; y and x: bins, s and t: parts. In aggregations: b
// batches, m heads, r and q: queries. In samplings: u, v and w: the image; p points, y and x: locations. z: elements of
// a workspace.
const std::map<std::string, const char*> kShapes = {{"x", "N h w c"},
                                                    {"d_x", "N h w c"},
                                                    {"offset", "P R q 2gk"},
                                                    {"mask", "P R q gk"},
                                                    {"d_offset", "P R q 2gk"},
                                                    {"d_mask", "P R q gk"},
                                                    {"columns", "n r q k c"},
                                                    {"tangents", "n r q k v c"},
                                                    {"y", "n r q f"},
                                                    {"bias", "f"},
                                                    {"by_tap", "k d f"},
                                                    {"workspace", "z"},
                                                    {"pooled", "b p y x f"},
                                                    {"images", "b n h w c"},
                                                    {"shifts", "b p s t 2m"},
                                                    {"argmax", "2 b p y x f"},
                                                    {"rois", "b p 5"},
                                                    {"origin", "4"},
                                                    {"start", "3"},
                                                    {"sorted", "i g kqS v"},
                                                    {"cells", "i g s"},
                                                    {"order", "i g kqS"},
                                                    {"query_origin", "2"},
                                                    {"value", "b h (w) m c"},
                                                    {"out", "b r (q) m c"},
                                                    {"locations", "b r (q) m k 2"},
                                                    {"weights", "b r (q) m k"},
                                                    {"image", "b u v w c"},
                                                    {"points", "b y x"},
                                                    {"samples", "b p c"}};

class CallBuilder {
 public:
  CallBuilder(Bytes& bytes, bool is_cpu) : bytes_(bytes), is_cpu_(is_cpu) {}

  Call Build() {
    const Handler& handler = bytes_.ChooseFrom(Handlers());
    call_.handler = handler.name;
    (this->*handler.choose_sizes)();
    AddAll(call_.arguments, handler.operands);
    if (handler.between) (this->*handler.between)();
    AddAll(call_.results, handler.results);
    if (handler.choose_rest) (this->*handler.choose_rest)();
    return call_;
  }

 private:
  static const std::vector<Handler>& Handlers();

  int64_t& size(char letter) { return sizes_[size_t(letter)]; }
  int64_t Dimension(const std::string& word) {
    int64_t product = 1;
    for (const char c : word) product = Product({product, '0' <= c && c <= '9' ? c - '0' : size(c)});
    return product;
  }
  // Mostly a size in [min, max], sometimes an extreme one.
  int64_t Size(int64_t max, int64_t min = 0) {
    const int64_t byte = bytes_.Next(), extreme = byte - (256 - int64_t(kExtremeSizes.size()));
    if (extreme < 0) return min + byte % (max - min + 1);
    call_.is_valid = false;
    return kExtremeSizes[extreme];
  }
  void ChooseSizes(const char* letters, std::initializer_list<int64_t> max, int64_t min = 0) {
    for (const int64_t most : max) size(*letters++) = Size(most, min);
  }
  void Integer(const char* name, int64_t value) { call_.attributes[name] = Attribute::Integer(value); }
  void Pair(const char* name, int64_t max, int64_t min) {
    const int64_t first = Size(max, min), second = Size(max, min);
    call_.attributes[name] = Attribute::Integers({first, second});
  }
  bool IsChosen(const std::string& attribute) {
    if (call_.attributes.count(attribute)) return IsTrue(attribute);
    const bool is_chosen = bytes_.Below(2);
    call_.attributes[attribute] = Attribute::Boolean(is_chosen);
    return is_chosen;
  }
  bool IsTrue(const std::string& attribute) const { return call_.attributes.at(attribute).bytes[0]; }

  XLA_FFI_DataType TypeOf(char type) {
    const XLA_FFI_DataType wide = type_ == kF64 ? kF64 : kF32;
    switch (std::toupper(type)) {
      case 'T':
        return type_;
      case 'C':
        return is_cpu_ ? wide : type_;
      case 'D':
        return is_rounded_ ? type_ : wide;
      case 'W':
        return bytes_.Below(2) ? wide : type_;
      case 'Y':
        return bytes_.Below(2) ? kF32 : type_;
      case 'F':
        return kF32;
      case 'I':
        return kS32;
      default:
        return wide;
    }
  }
  void AddAll(std::vector<Buffer>& buffers, const char* words) {
    std::istringstream stream(words);
    for (std::string word; stream >> word;) {
      const size_t end = word.find('?');
      if (end != std::string::npos) {
        const std::string attribute = word.substr(end + 1);
        if (!(attribute.empty() ? bytes_.Below(2) : IsChosen(attribute))) continue;
      }
      Add(buffers, word[0], word.substr(2, end - 2));
    }
  }
  void Add(std::vector<Buffer>& buffers, char type, const std::string& name) {
    std::vector<int64_t> dims;
    std::istringstream words(kShapes.at(name));
    for (std::string word; words >> word;) {
      if (std::string("uvw").find(word) != std::string::npos && axes_.find(word) == std::string::npos) continue;
      if (word[0] != '(') dims.push_back(Dimension(word));
      if (word[0] == '(' && is_window_) dims.push_back(Dimension(word.substr(1, word.size() - 2)));
    }
    Role role = &buffers == &call_.results ? Role::kResult : Role::kNumbers;
    if (std::islower(type)) role = Role::kScratch;
    static const std::map<std::string, int> places = {{"d_x", 1}, {"d_offset", 1}, {"d_mask", 2}};
    const int place = places.count(name) ? places.at(name) : 0;
    if (place) role = Role::kInPlace;
    if (name == "rois") role = Role::kRois;
    if (name == "origin" || name == "query_origin" || name == "start") role = Role::kOrigin;
    buffers.push_back({TypeOf(type), dims, role, place});
  }

  // The window of a convolution, and the sizes of its images.
  void Window(int64_t max_kernel_size) {
    ChooseKernel(max_kernel_size);
    call_.attributes["circular"] = Attribute::Boolean(bytes_.Below(2));
    ChooseSizes("nhwrq", {3, 9, 9, 4, 5});
    size('P') = size('n');
    size('R') = size('r');
  }
  void ChooseKernel(int64_t max, const char* image = "", std::initializer_list<int64_t> max_image = {}) {
    for (int64_t& kernel : kernel_) kernel = Size(max, 1);
    ChooseSizes(image, max_image);
    size('k') = Product({kernel_[0], kernel_[1]});
    call_.attributes["kernel_size"] = Attribute::Integers({kernel_[0], kernel_[1]});
    Pair("strides", 3, 1);
    Pair("padding", 3, -3);
    Pair("kernel_dilation", 3, 1);
  }

  // The sizes of a call of the handlers of columns, which support any number of channels.
  void Columns() {
    Window(4);
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    size('g') = Size(4, 1);
    size('c') = Product({size('g'), bytes_.Below(2) ? Size(3) : Product({4, Size(5)})});
    Integer("offset_groups", size('g'));
    size('N') = Sum(size('n'), Size(2));
    size('P') = Sum(size('n'), Size(2));
    if (size('n') <= 1) size('R') = Sum(size('r'), Size(2));
    size('s') = Sum(Product({Sum(size('h'), 1), Sum(size('w'), 1)}), 1);
    size('v') = type_ == kF64 ? 8 : 4;
  }
  void SortedColumns() {
    Columns();
    size('i') = size('n');
    size('S') = size('n') <= 1 ? size('r') : size('R');
  }
  void GatheredColumns() {
    Columns();
    size('i') = size('P');
    size('S') = size('R');
    is_rounded_ = size('r') == size('R') && bytes_.Below(2);
  }
  void OptionalMask() {
    if (IsTrue("mask_tangent") || bytes_.Below(2)) Add(call_.arguments, 'A', "mask");
    size('v') = IsChosen("columns_requested") ? 2 : 1;
  }

  void MeanPool() { PoolSizes(false); }
  void MaxPool() { PoolSizes(true); }
  void PoolSizes(bool is_max) {
    const int64_t convention = bytes_.Below(3);
    Integer("convention", convention);
    const std::vector<std::pair<const char*, const char*>> pairs = {
        {"output_size", "yx"}, {"group_size", "uv"}, {"part_size", "st"}, {"points", "ij"}};
    for (const auto& [name, letters] : pairs) {
      const int64_t min = *letters == 'i' && convention ? 0 : 1;  // 0: adaptive
      for (int axis = 0; axis < 2; ++axis) size(letters[axis]) = is_max && *letters == 'u' ? 1 : Size(3, min);
      call_.attributes[name] = Attribute::Integers({size(letters[0]), size(letters[1])});
    }
    const std::vector<double> scales = {0.5, 1, 0.0625, 0, -1, 1e300, 1e-300, 1. / 0, -1. / 0, 0. / 0};
    call_.attributes["spatial_scale"] = Attribute::Number(bytes_.ChooseFrom(scales));
    call_.attributes["trans_std"] = Attribute::Number(bytes_.ChooseFrom(scales));
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    ChooseSizes("bnhwp", {2, 2, 9, 9, 5});
    size('m') = is_max ? 1 : Size(3, 1);
    size('f') = Product({size('m'), bytes_.Below(2) ? Size(3) : Product({4, Size(5)})});
    size('c') = Dimension("fuv");
  }

  // Per feature group. INT64_MIN / -1 would overflow.
  int64_t PerGroup(int64_t count) { return size('G') && size('G') != -1 ? count / size('G') : 0; }
  void StoreGroups() {
    Integer("offset_groups", size('g'));
    Integer("feature_group_count", size('G'));
    size('N') = size('n');
    size('d') = PerGroup(size('c'));
  }

  // Any channels and features; those that are multiples of 32 are multiplied in pairs, if their type is bfloat16. An
  // ordinary convolution has no offset groups.
  void CpuFused() {
    Window(3);
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kBF16, kF16});
    size('g') = Size(3);
    size('G') = Size(3, 1);
    const int64_t multiple = bytes_.Below(2) ? 1 : 32, channels = Size(5, 1), g = std::max<int64_t>(size('g'), 1);
    size('c') = Product({multiple, channels, size('G'), bytes_.Below(2) ? g : 1});
    if (size('g') < 0 || size('c') % g != 0) call_.is_valid = false;
    size('f') = Product({size('G'), multiple, Size(5, 1)});
    StoreGroups();
  }
  dcn::DType FusedDType() const {
    return type_ == kF32 ? dcn::DType::kF32 : type_ == kF16 ? dcn::DType::kF16 : dcn::DType::kBF16;
  }
  // The size of a workspace; 0 for sizes that every workspace is refused for.
  template <typename WorkspaceOf>
  void CpuWorkspace(const WorkspaceOf& workspace_of) {
    size('z') = 0;
    for (const int64_t number : {kernel_[0], kernel_[1], size('k'), size('G')}) {
      if (number < 0 || number > INT32_MAX) return;
    }
    if (size('G') < 1 || size('h') < 0 || size('w') < 0) return;
    if (size('c') < size('G') || size('f') < size('G')) return;
    dcn::Convolution convolution = {};
    convolution.dtype = FusedDType();
    convolution.product = {size('f'), size('G')};
    dcn::Sizes& sizes = convolution.sizes;
    std::copy_n(kernel_, 2, sizes.window.kernel);
    sizes.images = size('n');
    sizes.height = size('h');
    sizes.width = size('w');
    sizes.channels = size('c');
    size('z') = workspace_of(convolution);
  }
  void CpuForwardWorkspace() { CpuWorkspace(dcn::FusedForwardWorkspace); }
  void CpuCotangentsWorkspace() {
    const bool has_workspace = bytes_.Below(16) < 15;
    call_.is_valid &= has_workspace;
    call_.attributes["workspace_requested"] = Attribute::Boolean(has_workspace);
    const dcn::RequestedCotangents requested = {
        IsTrue("x_requested"), IsTrue("offset_requested") || IsTrue("mask_requested"), IsTrue("weight_requested")};
    call_.is_valid &= size('g') > 0 || !requested.positions;
    const dcn::CotangentDivision division = {Size(dcn::kMaxWeightSplits + 1, 1), Size(dcn::kMaxResidentPlanes + 1, 1)};
    Integer("num_splits", division.num_splits);
    Integer("num_planes", division.num_planes);
    const bool is_division = 1 <= division.num_splits && division.num_splits <= dcn::kMaxWeightSplits &&
                             1 <= division.num_planes && division.num_planes <= dcn::kMaxResidentPlanes;
    call_.is_valid &= is_division;
    CpuWorkspace([&](const dcn::Convolution& convolution) -> int64_t {
      const bool is_counted = division.num_splits >= 0 && division.num_planes >= 0;
      return is_counted ? dcn::FusedCotangentsWorkspace(convolution, requested, division) : 0;
    });
    if (has_workspace) Add(call_.results, 'f', "workspace");
  }

  // A pyramid of up to three levels, or a window.
  void Aggregation() {
    is_window_ = IsChosen("window");
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    ChooseSizes("bm", {2, 3});
    size('c') = bytes_.Below(2) ? Size(3) : Product({4, Size(5)});
    size('r') = Size(5);
    size('q') = is_window_ ? Size(4) : 1;
    is_window_ ? WindowLevel() : Pyramid();
  }
  void WindowLevel() {
    ChooseKernel(3, "hw", {6, 6});
    const std::vector<double> scales = {1, 0.5, 0, -1, 1e300, 1. / 0, 0. / 0};
    call_.attributes["offset_scale"] = Attribute::Number(bytes_.ChooseFrom(scales));
    size('k') = Sum(size('k'), IsChosen("remove_center") ? -1 : 0);
    cells_ = Product({Sum(size('h'), 1), Sum(size('w'), 1)});
  }
  void Pyramid() {
    IsChosen("discrete");
    std::vector<int64_t> levels;
    for (int64_t count = bytes_.Below(4); count > 0; --count) {
      const int64_t height = Size(5), width = Size(5), taps = Size(4);
      levels.insert(levels.end(), {height, width, taps});
      size('h') = Sum(size('h'), Product({height, width}));  // the pixels of all levels
      cells_ = Sum(cells_, Product({Sum(height, 1), Sum(width, 1)}));
      size('k') = Sum(size('k'), taps);
    }
    call_.attributes["levels"] = Attribute::Integers(levels);
  }
  void SampleTables() {
    const int64_t words = type_ == kF64 ? 10 : 6;
    const int64_t table = Sum(Product({words, size('r'), size('q'), size('k')}), Sum(cells_, 1));
    size('z') = is_cpu_ ? 0 : Product({table, 1 + bytes_.Below(3)});
    Add(call_.results, 'i', "workspace");
  }

  // An image of one to three axes, of which the last ones have the letters v and w.
  void Sampling() {
    const int64_t dims = 1 + bytes_.Below(3);
    axes_ = std::string("uvw").substr(3 - size_t(dims));
    const bool is_planar = IsChosen("planar");
    const int64_t method = bytes_.Below(5), units = bytes_.Below(4), fold = bytes_.Below(4), outside = bytes_.Below(6);
    Integer("method", method);
    Integer("units", units);
    Integer("fold", fold);
    Integer("outside", outside);
    call_.is_valid &= method < 4 && units < 3 && fold < 3 && outside < 5 && (method < 3 || dims == 2);
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    ChooseSizes("buvwp", {2, 5, 5, 5, 9});
    size('c') = bytes_.Below(2) ? Size(5) : Product({4, Size(5)});
    size('y') = is_planar ? dims : size('p');
    size('x') = is_planar ? size('p') : dims;
    const int64_t words = type_ == kF64 ? 5 : 3, entries = dims == 3 ? 8 : method == 3 ? 16 : 4;
    const int64_t table = Sum(Product({words, entries, size('p')}), Sum(Dimension(axes_), 1));
    size('z') = is_cpu_ ? 0 : Product({table, 1 + bytes_.Below(3)});
  }

  Bytes& bytes_;
  const bool is_cpu_;
  std::string axes_ = "uvw";
  bool is_window_ = false, is_rounded_ = false;
  Call call_;
  XLA_FFI_DataType type_ = kF32;
  int64_t kernel_[2] = {}, cells_ = 0;
  std::array<int64_t, 128> sizes_ = {};  // by letter
};

const std::vector<Handler>& CallBuilder::Handlers() {
  using B = CallBuilder;
  static const std::vector<Handler> handlers = {
      {"dcn_sample", &B::Columns, "T:x A:offset I:origin A:mask?", "T:columns"},
      {"dcn_offset_cotangent", &B::Columns,
       "T:x A:offset I:origin C:columns A:d_offset?offset_requested A:d_mask?mask_requested A:mask?",
       "A:d_offset?offset_requested A:d_mask?mask_requested T:columns?columns_requested"},
      {"dcn_cpu_x_cotangent", &B::Columns, "A:offset I:origin C:columns D:d_x A:mask?", "D:d_x"},
      {"dcn_roi_pool", &B::MeanPool, "T:images A:rois A:shifts?", "T:pooled"},
      {"dcn_roi_pool_x_cotangent", &B::MeanPool, "A:rois T:pooled A:shifts?", "A:images"},
      {"dcn_roi_pool_offset_cotangent", &B::MeanPool, "T:images A:rois T:pooled A:shifts", "A:shifts"},
      {"dcn_roi_max_pool", &B::MaxPool, "T:images A:rois", "T:pooled"},
      {"dcn_roi_max_pool_argmax", &B::MaxPool, "T:images A:rois", "I:argmax"},
      {"dcn_roi_max_pool_x_cotangent", &B::MaxPool, "A:rois T:pooled I:argmax", "A:images"},
      {"dcn_sample_tangents", &B::Columns,
       "T:x A:offset I:origin T:x?x_tangent A:offset?offset_tangent A:mask?mask_tangent", "T:tangents",
       &B::OptionalMask},
      {"dcn_aggregate", &B::Aggregation, "T:value A:locations A:weights I:query_origin", "T:out"},
      {"dcn_aggregation_value_cotangent", &B::Aggregation, "A:locations A:weights I:query_origin T:out", "W:value",
       nullptr, &B::SampleTables},
      {"dcn_aggregation_tap_cotangents", &B::Aggregation, "T:value A:locations A:weights I:query_origin T:out",
       "A:locations?locations_requested A:weights?weights_requested"},
      {"dcn_cpu_fused_forward", &B::CpuFused, "T:x F:offset I:origin T:by_tap F:bias F:mask?", "Y:y f:workspace",
       &B::CpuForwardWorkspace},
      {"dcn_cpu_fused_cotangents", &B::CpuFused, "T:x F:offset I:origin T:by_tap T:y F:mask?",
       "T:x?x_requested F:offset?offset_requested F:mask?mask_requested F:by_tap?weight_requested", nullptr,
       &B::CpuCotangentsWorkspace},
      {"dcn_sampling", &B::Sampling, "T:image A:points", "T:samples"},
      {"dcn_sampling_x_cotangent", &B::Sampling, "A:points T:samples", "W:image i:workspace"},
      {"dcn_sampling_locations_cotangent", &B::Sampling, "T:image A:points T:samples", "A:points"},
      {"dcn_sort_samples", &B::SortedColumns, "T:x A:offset I:origin A:mask?", "i:sorted i:cells i:order"},
      {"dcn_gather_samples", &B::GatheredColumns, "I:sorted I:cells I:start C:columns D:d_x", "D:d_x"},
  };
  return handlers;
}

// Makes a call invalid, mostly.
class Mutation {
 public:
  Mutation(Bytes& bytes, Call& call) : bytes_(bytes), call_(call) {}

  void Apply() {
    call_.is_valid = false;
    switch (bytes_.Below(8)) {
      case 0:
      case 1:
        return Dimension();
      case 2:
        return Type();
      case 3:
        return Rank();
      case 4:
        return BufferCount();
      default:
        return Attributes();
    }
  }

 private:
  std::vector<Buffer>& Buffers() { return bytes_.Below(2) ? call_.results : call_.arguments; }
  template <typename T>
  T* ChooseElement(std::vector<T>& choices) {
    return choices.empty() ? nullptr : &choices[bytes_.Below(int64_t(choices.size()))];
  }
  int64_t MutatedSize(int64_t size) {
    const int64_t kind = bytes_.Below(4);
    return kind == 0   ? Sum(size, 1)
           : kind == 1 ? Sum(size, -1)
           : kind == 2 ? Product({size, 2})
                       : bytes_.ChooseFrom(kExtremeSizes);
  }

  void Dimension() {
    Buffer* buffer = ChooseElement(Buffers());
    int64_t* size = buffer ? ChooseElement(buffer->dims) : nullptr;
    if (size) *size = MutatedSize(*size);
  }
  void Type() {
    const std::vector<XLA_FFI_DataType> types = {kF32,
                                                 kF64,
                                                 kF16,
                                                 kBF16,
                                                 kS32,
                                                 XLA_FFI_DataType_S64,
                                                 XLA_FFI_DataType_PRED,
                                                 XLA_FFI_DataType_C64,
                                                 XLA_FFI_DataType_INVALID,
                                                 XLA_FFI_DataType_TOKEN};
    if (Buffer* buffer = ChooseElement(Buffers())) buffer->dtype = bytes_.ChooseFrom(types);
  }
  void Rank() {
    Buffer* buffer = ChooseElement(Buffers());
    if (!buffer) return;
    const int64_t kind = bytes_.Below(3);
    if (kind == 0) buffer->dims.push_back(1);
    if (kind == 1 && !buffer->dims.empty()) buffer->dims.pop_back();
    if (kind == 2) buffer->dims.clear();
  }
  void BufferCount() {
    std::vector<Buffer>& buffers = Buffers();
    Buffer* buffer = ChooseElement(buffers);
    if (!buffer) return;
    const int64_t kind = bytes_.Below(4);
    if (kind == 0) buffers.erase(buffers.begin() + (buffer - buffers.data()));
    if (kind == 1) buffers.push_back(Buffer(*buffer));
    if (kind == 2) std::swap(*buffer, buffers.front());
    if (kind == 3 && buffer->role == Role::kInPlace) buffer->role = Role::kNumbers;
  }
  void Attributes() {
    if (call_.attributes.empty()) return;
    const auto chosen = std::next(call_.attributes.begin(), bytes_.Below(int64_t(call_.attributes.size())));
    Attribute& attribute = chosen->second;
    const size_t values = attribute.bytes.size() / sizeof(int64_t);
    const auto mutate_value = [&] {
      if (values == 0) return;
      const size_t index = size_t(bytes_.Below(int64_t(values)));
      int64_t value;
      std::memcpy(&value, &attribute.bytes[index * sizeof value], sizeof value);
      value = MutatedSize(value);
      std::memcpy(&attribute.bytes[index * sizeof value], &value, sizeof value);
    };
    switch (bytes_.Below(8)) {
      case 0:
        call_.attributes.erase(chosen);
        return;
      case 1:
        attribute = Attribute::Integer(bytes_.ChooseFrom(kExtremeSizes));
        return;
      case 2:
        attribute = bytes_.Below(2) ? Attribute::Number(2) : Attribute::Boolean(true);
        return;
      case 3:
        attribute = Attribute::Integers({1, 1, 1});
        attribute.bytes.resize(size_t(bytes_.Below(4)) * sizeof(int64_t));
        return;
      case 4:
        attribute = {XLA_FFI_AttrType(bytes_.Below(4) + 1), XLA_FFI_DataType_S32, std::vector<char>(8, 1)};
        return;
      case 5: {
        const Attribute copy = attribute;
        call_.attributes["other"] = copy;
        return;
      }
      default:
        return mutate_value();
    }
  }

  Bytes& bytes_;
  Call& call_;
};

}  // namespace

Call ReadCall(Bytes& bytes, bool is_cpu) {
  Call call = CallBuilder(bytes, is_cpu).Build();
  for (int64_t mutations = bytes.Below(4); mutations > 0; --mutations) Mutation(bytes, call).Apply();
  return call;
}

}  // namespace fuzz
