// Decodes calls from bytes: the bytes choose a handler, a valid call of it, and then some mutations of the call.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "call.h"
#include "deform_conv_fused.h"

namespace fuzz {

const std::vector<int64_t> kExtremeSizes = {
    0,
    1,
    -1,
    (1 << 15) + 1,
    (1 << 24) + 1,
    INT32_MAX - 1,
    INT32_MAX,
    int64_t{INT32_MAX} + 1,
    int64_t{1} << 32,
    int64_t{1} << 40,
    int64_t{1} << 47,
    int64_t{1} << 61,
    INT64_MAX - 1,
    INT64_MAX,
    INT32_MIN,
    INT64_MIN,
};

namespace {

constexpr auto kF16 = XLA_FFI_DataType_F16, kBF16 = XLA_FFI_DataType_BF16, kF32 = XLA_FFI_DataType_F32,
               kF64 = XLA_FFI_DataType_F64, kS32 = XLA_FFI_DataType_S32;

// Product and Sum may overflow, which is defined for unsigned integers.
int64_t Product(std::initializer_list<int64_t> sizes) {
  uint64_t product = 1;
  for (const int64_t size : sizes) product *= uint64_t(size);
  return int64_t(product);
}
int64_t Sum(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }

XLA_FFI_DataType Accumulator(XLA_FFI_DataType type) { return type == kF64 ? kF64 : kF32; }

class CallBuilder {
 public:
  CallBuilder(Bytes& bytes, bool is_cpu) : bytes_(bytes), is_cpu_(is_cpu) {}

  Call Build() {
    using Build = void (CallBuilder::*)();
    const std::vector<std::pair<const char*, Build>> handlers = {
        {"dcn_sample", &CallBuilder::Sample},
        {"dcn_offset_cotangent", &CallBuilder::OffsetCotangent},
        {"dcn_input_cotangent", &CallBuilder::InputCotangent},
        {"dcn_roi_pool", &CallBuilder::Pool},
        {"dcn_roi_pool_input_cotangent", &CallBuilder::PoolInputCotangent},
        {"dcn_roi_pool_offset_cotangent", &CallBuilder::PoolOffsetCotangent},
        {"dcn_roi_max_pool", &CallBuilder::MaxPool},
        {"dcn_roi_max_pool_argmax", &CallBuilder::MaxPoolArgmax},
        {"dcn_roi_max_pool_input_cotangent", &CallBuilder::MaxPoolInputCotangent},
        {"dcn_fused_forward", &CallBuilder::FusedForward},
        {"dcn_fused_input_cotangent", &CallBuilder::FusedInputCotangent},
        {"dcn_fused_offset_cotangent", &CallBuilder::FusedOffsetCotangent},
        {"dcn_fused_weight_cotangent", &CallBuilder::FusedWeightCotangent},
        {"dcn_sample_tangents", &CallBuilder::SampleTangents},
        {"dcn_aggregate", &CallBuilder::Aggregate},
        {"dcn_aggregation_value_cotangent", &CallBuilder::AggregationValueCotangent},
        {"dcn_aggregation_tap_cotangents", &CallBuilder::AggregationTapCotangents},
        {"dcn_cpu_fused_forward", &CallBuilder::CpuFusedForward},
        {"dcn_cpu_fused_cotangents", &CallBuilder::CpuFusedCotangents},
    };
    const auto& [name, build] = bytes_.ChooseFrom(handlers);
    call_.handler = name;
    (this->*build)();
    return call_;
  }

 private:
  // Mostly a size in [min, max], sometimes an extreme one.
  int64_t Size(int64_t max, int64_t min = 0) {
    const int64_t byte = bytes_.Next(), extreme = byte - (256 - int64_t(kExtremeSizes.size()));
    if (extreme < 0) return min + byte % (max - min + 1);
    call_.is_valid = false;
    return kExtremeSizes[extreme];
  }

  void Argument(XLA_FFI_DataType dtype, std::vector<int64_t> dims, Role role = Role::kNumbers) {
    call_.arguments.push_back({dtype, std::move(dims), role});
  }
  void Result(XLA_FFI_DataType dtype, std::vector<int64_t> dims, Role role = Role::kResult) {
    call_.results.push_back({dtype, std::move(dims), role});
  }
  void Pair(const char* name, const std::vector<int64_t>& pair) { call_.attributes[name] = Attribute::Integers(pair); }

  void Window(int64_t max_kernel_size) {
    kernel_[0] = Size(max_kernel_size, 1);
    kernel_[1] = Size(max_kernel_size, 1);
    taps_ = Product({kernel_[0], kernel_[1]});
    Pair("kernel_size", {kernel_[0], kernel_[1]});
    Pair("strides", {Size(3, 1), Size(3, 1)});
    Pair("padding", {Size(3, -3), Size(3, -3)});
    Pair("kernel_dilation", {Size(3, 1), Size(3, 1)});
    call_.attributes["circular"] = Attribute::Boolean(bytes_.Below(2));
    images_ = Size(3);
    height_ = Size(9);
    width_ = Size(9);
    rows_ = Size(4);
    columns_ = Size(5);
  }

  // The sizes of a call of the handlers of columns, which support any number of channels.
  void Columns() {
    Window(4);
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    offset_groups_ = Size(4, 1);
    channels_ = Product({offset_groups_, bytes_.Below(2) ? Size(3) : Product({4, Size(5)})});
    call_.attributes["offset_groups"] = Attribute::Integer(offset_groups_);
  }
  std::vector<int64_t> ColumnsShape() const { return {images_, rows_, columns_, taps_, channels_}; }
  std::vector<int64_t> ImageShape(int64_t images) const { return {images, height_, width_, channels_}; }
  std::vector<int64_t> PositionsShape(int64_t coordinates) const {
    return {images_, rows_, columns_, Product({coordinates, offset_groups_, taps_})};
  }
  void OffsetAndOrigin(XLA_FFI_DataType type) {
    Argument(type, PositionsShape(2));
    Argument(kS32, {3}, Role::kOrigin);
  }
  void OptionalMask(XLA_FFI_DataType type) {
    if (bytes_.Below(2)) Argument(type, PositionsShape(1));
  }

  void Sample() {
    Columns();
    Argument(type_, ImageShape(Sum(images_, Size(2))));
    OffsetAndOrigin(Accumulator(type_));
    OptionalMask(Accumulator(type_));
    Result(type_, ColumnsShape());
  }

  void SampleTangents() {
    Columns();
    const std::vector<int64_t> image = ImageShape(Sum(images_, Size(2)));
    const XLA_FFI_DataType wide = Accumulator(type_);
    Argument(type_, image);
    OffsetAndOrigin(wide);
    if (IsChosen("x_tangent")) Argument(type_, image);
    if (IsChosen("offset_tangent")) Argument(wide, PositionsShape(2));
    const bool has_mask_tangent = IsChosen("mask_tangent");
    if (has_mask_tangent) Argument(wide, PositionsShape(1));
    if (has_mask_tangent || bytes_.Below(2)) Argument(wide, PositionsShape(1));
    Result(type_, {images_, rows_, columns_, taps_, IsChosen("columns_requested") ? 2 : 1, channels_});
  }

  void OffsetCotangent() {
    Columns();
    Argument(type_, ImageShape(Sum(images_, Size(2))));
    OffsetAndOrigin(Accumulator(type_));
    Argument(ColumnCotangent(), ColumnsShape());
    OptionalMask(Accumulator(type_));
    PositionResults(Accumulator(type_));
    if (IsChosen("columns_requested")) Result(type_, ColumnsShape());
  }

  bool IsChosen(const std::string& attribute) {
    const bool is_chosen = bytes_.Below(2);
    call_.attributes[attribute] = Attribute::Boolean(is_chosen);
    return is_chosen;
  }
  void PositionResults(XLA_FFI_DataType type) {
    if (IsChosen("offset_requested")) Result(type, PositionsShape(2));
    if (IsChosen("mask_requested")) Result(type, PositionsShape(1));
  }

  XLA_FFI_DataType ColumnCotangent() const { return is_cpu_ ? Accumulator(type_) : type_; }

  void InputCotangent() {
    Columns();
    const XLA_FFI_DataType wide = Accumulator(type_);
    OffsetAndOrigin(wide);
    Argument(ColumnCotangent(), ColumnsShape());
    const int64_t images_of_x = Sum(images_, Size(2));
    Argument(wide, ImageShape(images_of_x), Role::kInPlace);
    OptionalMask(wide);
    Result(wide, ImageShape(images_of_x), Role::kInPlace);
    const int64_t samples = Product({2, rows_, columns_, taps_});
    const int64_t cells = Product({Sum(height_, 1), Sum(width_, 1)});
    const int64_t workspace = Product({images_, offset_groups_, Sum(samples, Sum(cells, 1))});
    Result(kS32, {is_cpu_ ? 0 : workspace}, Role::kScratch);
  }

  void PoolSizes(bool is_max = false) {
    const int64_t convention = bytes_.Below(3);
    call_.attributes["convention"] = Attribute::Integer(convention);
    const std::vector<std::pair<const char*, int64_t*>> pairs = {
        {"output_size", output_}, {"group_size", group_}, {"part_size", part_}, {"points", points_}};
    for (const auto& [name, pair] : pairs) {
      const int64_t min = pair == points_ && convention ? 0 : 1;  // 0: adaptive
      for (int axis = 0; axis < 2; ++axis) pair[axis] = is_max && pair == group_ ? 1 : Size(3, min);
      Pair(name, {pair[0], pair[1]});
    }
    const std::vector<double> scales = {0.5, 1, 0.0625, 0, -1, 1e300, 1e-300, 1. / 0, -1. / 0, 0. / 0};
    call_.attributes["spatial_scale"] = Attribute::Number(bytes_.ChooseFrom(scales));
    call_.attributes["trans_std"] = Attribute::Number(bytes_.ChooseFrom(scales));
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    batches_ = Size(2);
    images_ = Size(2);
    height_ = Size(9);
    width_ = Size(9);
    rois_ = Size(5);
    classes_ = is_max ? 1 : Size(3, 1);
    features_ = Product({classes_, bytes_.Below(2) ? Size(3) : Product({4, Size(5)})});
    channels_ = Product({features_, group_[0], group_[1]});
  }
  std::vector<int64_t> PoolImageShape() const { return {batches_, images_, height_, width_, channels_}; }
  std::vector<int64_t> PooledShape() const { return {batches_, rois_, output_[0], output_[1], features_}; }
  std::vector<int64_t> PoolOffsetShape() const { return {batches_, rois_, part_[0], part_[1], Product({2, classes_})}; }
  void Rois() { Argument(Accumulator(type_), {batches_, rois_, 5}, Role::kRois); }
  void OptionalOffset() {
    if (bytes_.Below(2)) Argument(Accumulator(type_), PoolOffsetShape());
  }

  std::vector<int64_t> ArgmaxShape() const { return {2, batches_, rois_, output_[0], output_[1], features_}; }
  void MaxPool() {
    PoolSizes(true);
    Argument(type_, PoolImageShape());
    Rois();
    Result(type_, PooledShape());
  }
  void MaxPoolArgmax() {
    PoolSizes(true);
    Argument(type_, PoolImageShape());
    Rois();
    Result(kS32, ArgmaxShape());
  }
  void MaxPoolInputCotangent() {
    PoolSizes(true);
    Rois();
    Argument(type_, PooledShape());
    Argument(kS32, ArgmaxShape());
    Result(Accumulator(type_), PoolImageShape());
  }

  void Pool() {
    PoolSizes();
    Argument(type_, PoolImageShape());
    Rois();
    OptionalOffset();
    Result(type_, PooledShape());
  }
  void PoolInputCotangent() {
    PoolSizes();
    Rois();
    Argument(type_, PooledShape());
    OptionalOffset();
    Result(Accumulator(type_), PoolImageShape());
  }
  void PoolOffsetCotangent() {
    PoolSizes();
    Argument(type_, PoolImageShape());
    Rois();
    Argument(type_, PooledShape());
    Argument(Accumulator(type_), PoolOffsetShape());
    Result(Accumulator(type_), PoolOffsetShape());
  }

  void Fused() {
    Window(3);
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16});
    const int64_t vector = type_ == kF32 ? 4 : 8;
    offset_groups_ = Size(3, 1);
    groups_ = Size(3, 1);
    // A multiple of both group counts: a segment times their maximum, which is enough if they are equal or one of them
    // is 1, or times their product.
    const int64_t segment = Product({vector, Size(3, 1)});
    const bool use_maximum = bytes_.Below(2);
    channels_ = use_maximum ? Product({segment, std::max(groups_, offset_groups_)})
                            : Product({segment, groups_, offset_groups_});
    features_ = Product({groups_, vector, Size(3, 1)});
    if (offset_groups_ > 1 && groups_ > 1 && offset_groups_ != groups_) call_.is_valid = false;
    call_.attributes["offset_groups"] = Attribute::Integer(offset_groups_);
    call_.attributes["feature_group_count"] = Attribute::Integer(groups_);
  }
  std::vector<int64_t> YShape() const { return {images_, rows_, columns_, features_}; }
  // Per group. INT64_MIN / -1 would overflow.
  int64_t PerGroup(int64_t count) const { return groups_ && groups_ != -1 ? count / groups_ : 0; }
  std::vector<int64_t> WeightByChannelShape() const { return {channels_, taps_, PerGroup(features_)}; }

  void FusedForward() {
    Fused();
    Argument(type_, ImageShape(images_));
    OffsetAndOrigin(kF32);
    Argument(type_, {features_, taps_, PerGroup(channels_)});
    Argument(kF32, {features_});
    OptionalMask(kF32);
    Result(bytes_.Below(2) ? kF32 : type_, YShape());
    call_.attributes["tile_features"] = Attribute::Integer(64 << bytes_.Below(3));
  }
  void FusedInputCotangent() {
    Fused();
    OffsetAndOrigin(kF32);
    Argument(type_, WeightByChannelShape());
    Argument(type_, YShape());
    OptionalMask(kF32);
    const int64_t contributions = Product({4, rows_, columns_});
    // A call of extremely many images would take extremely long if it computed them one by one.
    const int64_t images = images_ <= 3 ? Size(3) : images_;  // at a time
    call_.is_valid &= images > 0 || images_ == 0;
    Result(type_, ImageShape(images_));
    Result(kS32, {images, offset_groups_, taps_, Sum(Product({height_, width_}), 1)}, Role::kScratch);
    Result(kS32, {images, offset_groups_, taps_, contributions, 2}, Role::kScratch);
    Result(kS32, {images, offset_groups_, taps_, contributions}, Role::kScratch);
  }
  void FusedOffsetCotangent() {
    Fused();
    Argument(type_, ImageShape(images_));
    OffsetAndOrigin(kF32);
    Argument(type_, WeightByChannelShape());
    Argument(type_, YShape());
    OptionalMask(kF32);
    PositionResults(kF32);
    const int64_t block_taps = Size(3, 1);
    call_.attributes["block_taps"] = Attribute::Integer(block_taps);
    call_.is_valid &= block_taps <= taps_;
  }
  void FusedWeightCotangent() {
    Fused();
    const int64_t splits = Size(3, 1);
    Argument(type_, ImageShape(images_));
    OffsetAndOrigin(kF32);
    Argument(type_, YShape());
    OptionalMask(kF32);
    Result(kF32, {splits, taps_, PerGroup(channels_), features_});
    call_.is_valid &= type_ != kF32 && splits <= std::max<int64_t>(1, Product({images_, rows_, columns_}));
  }

  // Any channels and features; those that are multiples of 32 are multiplied in pairs, if their type is bfloat16.
  void CpuFused() {
    Window(3);
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kBF16, kF16});
    offset_groups_ = Size(3, 1);
    groups_ = Size(3, 1);
    const int64_t multiple = bytes_.Below(2) ? 1 : 32;
    channels_ = Product({multiple, Size(5, 1), groups_, bytes_.Below(2) ? offset_groups_ : 1});
    if (offset_groups_ < 1 || channels_ % offset_groups_ != 0) call_.is_valid = false;
    features_ = Product({groups_, multiple, Size(5, 1)});
    call_.attributes["offset_groups"] = Attribute::Integer(offset_groups_);
    call_.attributes["feature_group_count"] = Attribute::Integer(groups_);
  }
  std::vector<int64_t> WeightByTapShape() const { return {taps_, PerGroup(channels_), features_}; }
  dcn::DType FusedDType() const {
    if (type_ == kF32) return dcn::DType::kF32;
    return type_ == kF16 ? dcn::DType::kF16 : dcn::DType::kBF16;
  }
  // 0 for sizes that every workspace is refused for.
  template <typename Size>
  int64_t CpuWorkspace(const Size& size) const {
    const auto is_int32 = [](int64_t value) { return 0 <= value && value <= INT32_MAX; };
    if (!is_int32(kernel_[0]) || !is_int32(kernel_[1]) || !is_int32(taps_) || !is_int32(groups_) || groups_ < 1 ||
        height_ < 0 || width_ < 0 || channels_ < groups_ || features_ < groups_) {
      return 0;
    }
    dcn::Sizes sizes = {};
    std::copy_n(kernel_, 2, sizes.window.kernel);
    sizes.images = images_;
    sizes.height = height_;
    sizes.width = width_;
    sizes.channels = channels_;
    return size(sizes, dcn::Product{features_, groups_});
  }

  void CpuFusedForward() {
    CpuFused();
    Argument(type_, ImageShape(images_));
    OffsetAndOrigin(kF32);
    Argument(type_, WeightByTapShape());
    Argument(kF32, {features_});
    OptionalMask(kF32);
    Result(bytes_.Below(2) ? kF32 : type_, YShape());
    const int64_t workspace = CpuWorkspace([&](const dcn::Sizes& sizes, const dcn::Product& product) {
      return dcn::FusedForwardWorkspace(FusedDType(), sizes, product);
    });
    Result(kF32, {workspace}, Role::kScratch);
  }
  void CpuFusedCotangents() {
    CpuFused();
    Argument(type_, ImageShape(images_));
    OffsetAndOrigin(kF32);
    Argument(type_, WeightByTapShape());
    Argument(type_, YShape());
    OptionalMask(kF32);
    dcn::RequestedCotangents requested = {};
    requested.x = IsChosen("x_requested");
    if (requested.x) Result(type_, ImageShape(images_));
    const size_t results = call_.results.size();
    PositionResults(kF32);
    requested.positions = call_.results.size() > results;
    requested.weight = IsChosen("weight_requested");
    if (requested.weight) Result(kF32, WeightByTapShape());
    const bool has_workspace = bytes_.Below(16) < 15;
    call_.is_valid &= has_workspace;
    call_.attributes["workspace_requested"] = Attribute::Boolean(has_workspace);
    const int64_t workspace = CpuWorkspace([&](const dcn::Sizes& sizes, const dcn::Product& product) {
      return dcn::FusedCotangentsWorkspace(FusedDType(), sizes, product, requested);
    });
    if (has_workspace) Result(kF32, {workspace}, Role::kScratch);
  }

  // A pyramid of up to three levels, or a window.
  void Aggregation() {
    is_window_ = IsChosen("window");
    type_ = bytes_.ChooseFrom<XLA_FFI_DataType>({kF32, kF16, kBF16, kF64});
    batches_ = Size(2);
    heads_ = Size(3);
    channels_ = bytes_.Below(2) ? Size(3) : Product({4, Size(5)});
    rows_ = Size(5);
    columns_ = is_window_ ? Size(4) : 1;
    height_ = width_ = cells_ = taps_ = 0;
    if (is_window_) {
      WindowLevel();
    } else {
      Pyramid();
    }
  }
  void WindowLevel() {
    kernel_[0] = Size(3, 1);
    kernel_[1] = Size(3, 1);
    height_ = Size(6);
    width_ = Size(6);
    Pair("kernel_size", {kernel_[0], kernel_[1]});
    Pair("strides", {Size(3, 1), Size(3, 1)});
    Pair("padding", {Size(3, -3), Size(3, -3)});
    Pair("kernel_dilation", {Size(3, 1), Size(3, 1)});
    const std::vector<double> scales = {1, 0.5, 0, -1, 1e300, 1. / 0, 0. / 0};
    call_.attributes["offset_scale"] = Attribute::Number(bytes_.ChooseFrom(scales));
    taps_ = Sum(Product({kernel_[0], kernel_[1]}), IsChosen("remove_center") ? -1 : 0);
    cells_ = Product({Sum(height_, 1), Sum(width_, 1)});
  }
  void Pyramid() {
    IsChosen("discrete");
    std::vector<int64_t> levels;
    for (int64_t count = bytes_.Below(4); count > 0; --count) {
      const int64_t height = Size(5), width = Size(5), taps = Size(4);
      levels.insert(levels.end(), {height, width, taps});
      height_ = Sum(height_, Product({height, width}));
      cells_ = Sum(cells_, Product({Sum(height, 1), Sum(width, 1)}));
      taps_ = Sum(taps_, taps);
    }
    call_.attributes["levels"] = Attribute::Integers(levels);
  }
  std::vector<int64_t> AggregationShape(int64_t rows, int64_t columns, std::vector<int64_t> rest) const {
    std::vector<int64_t> shape = {batches_, rows};
    if (is_window_) shape.push_back(columns);
    shape.push_back(heads_);
    shape.insert(shape.end(), rest.begin(), rest.end());
    return shape;
  }
  std::vector<int64_t> ValueShape() const { return AggregationShape(height_, width_, {channels_}); }
  std::vector<int64_t> OutShape() const { return AggregationShape(rows_, columns_, {channels_}); }
  std::vector<int64_t> LocationsShape() const { return AggregationShape(rows_, columns_, {taps_, 2}); }
  std::vector<int64_t> WeightsShape() const { return AggregationShape(rows_, columns_, {taps_}); }
  void TapArguments() {
    Argument(Accumulator(type_), LocationsShape());
    Argument(Accumulator(type_), WeightsShape());
    Argument(kS32, {2}, Role::kOrigin);
  }

  void Aggregate() {
    Aggregation();
    Argument(type_, ValueShape());
    TapArguments();
    Result(type_, OutShape());
  }
  void AggregationValueCotangent() {
    Aggregation();
    TapArguments();
    Argument(type_, OutShape());
    Result(bytes_.Below(2) ? Accumulator(type_) : type_, ValueShape());
    const int64_t words = type_ == kF64 ? 10 : 6;
    const int64_t table = Sum(Product({words, rows_, columns_, taps_}), Sum(cells_, 1));
    Result(kS32, {is_cpu_ ? 0 : Product({table, 1 + bytes_.Below(3)})}, Role::kScratch);
  }
  void AggregationTapCotangents() {
    Aggregation();
    Argument(type_, ValueShape());
    TapArguments();
    Argument(type_, OutShape());
    if (IsChosen("locations_requested")) Result(Accumulator(type_), LocationsShape());
    if (IsChosen("weights_requested")) Result(Accumulator(type_), WeightsShape());
  }

  Bytes& bytes_;
  bool is_cpu_, is_window_;
  Call call_;
  XLA_FFI_DataType type_;
  int64_t kernel_[2], output_[2], group_[2], part_[2], points_[2];
  int64_t taps_, images_, height_, width_, rows_, columns_, channels_, offset_groups_, groups_ = 1, features_;
  int64_t batches_, rois_, classes_, heads_, cells_;
};

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
    static const std::vector<XLA_FFI_DataType> kTypes = {kF32,
                                                         kF64,
                                                         kF16,
                                                         kBF16,
                                                         kS32,
                                                         XLA_FFI_DataType_S64,
                                                         XLA_FFI_DataType_PRED,
                                                         XLA_FFI_DataType_C64,
                                                         XLA_FFI_DataType_INVALID,
                                                         XLA_FFI_DataType_TOKEN};
    if (Buffer* buffer = ChooseElement(Buffers())) buffer->dtype = bytes_.ChooseFrom(kTypes);
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
    if (kind == 3) buffer->role = Role::kNumbers;  // the operand or result is no longer in place
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
