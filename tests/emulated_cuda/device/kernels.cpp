// Operators on device tensors: each is computed by its CPU kernel on a view of the device's memory.
#include "emulated.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

namespace emulated {

using at::Tensor;
using Below = at::AutoDispatchBelowADInplaceOrView;
constexpr size_t LARGEST_COMPARED = size_t(16) << 20;

static bool on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == CUDA; }

// ---- generators: one of the CPU behind a CUDA device

struct Generator final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Generator(int device, at::Generator inner)
      : GeneratorImpl(c10::Device(CUDA, device), c10::DispatchKeySet(c10::DispatchKey::CUDA)), inner(std::move(inner)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(device().index(), inner.clone()); }
};

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(device, at::make_generator<at::CPUGeneratorImpl>(5489u));
}

at::Generator& default_generator(int device) {
  Lock lock(mutex());
  static auto* made = new std::map<int, at::Generator>;
  check_device(device);
  auto& found = (*made)[device];
  if (!found.defined()) found = new_generator(device);
  return found;
}

at::Generator& host_generator(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner;
}

// ---- device memory as CPU tensors, and back

static void set_shape(const Tensor& to, const Tensor& from) {
  auto* impl = to.unsafeGetTensorImpl();
  impl->set_storage_offset(from.storage_offset());
  impl->set_sizes_and_strides(from.sizes(), from.strides());
}

static c10::Storage host_storage(const c10::Storage& storage) {
  c10::DataPtr pointer(host_view(storage.data()), c10::kCPU);  // not owned
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer), c10::GetCPUAllocator(), true};
}

static Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  set_shape(made, like);
  if (like.is_conj()) made._set_conj(true);
  if (like.is_neg()) made._set_neg(true);
  return made;
}

Tensor host_tensor(const Tensor& tensor) {
  return tensor_over(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

void spoil(const Tensor& host) {
  if (host.is_non_overlapping_and_dense()) memset(host.data_ptr(), host.is_floating_point() ? 0xff : 0x7f, host.nbytes());
}

// The CPU's view of the arguments of one operator; what shares memory on the device shares it here.
struct Views {
  int device;
  std::unordered_map<c10::StorageImpl*, c10::Storage> to_host, to_device;
  std::vector<std::pair<Tensor, Tensor>> pairs;  // (device, host)

  c10::Storage host_of(const c10::Storage& storage) {
    auto found = to_host.find(storage.unsafeGetStorageImpl());
    if (found != to_host.end()) return found->second;
    auto made = host_storage(storage);
    remember(storage, made);
    return made;
  }

  void remember(const c10::Storage& device, const c10::Storage& host) {
    to_host.emplace(device.unsafeGetStorageImpl(), host);
    to_device.emplace(host.unsafeGetStorageImpl(), device);
  }

  Tensor host(const Tensor& tensor) {
    auto made = tensor_over(host_of(tensor.storage()), c10::DispatchKey::CPU, tensor);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    pairs.emplace_back(tensor, made);
    return made;
  }

  c10::DataPtr copied(const c10::Storage& host) {
    auto pointer = memory().allocate_on(device, host.nbytes());
    if (host.nbytes()) memcpy(host_view(pointer.get()), host.data(), host.nbytes());
    return pointer;
  }

  c10::Storage device_of(const c10::Storage& host) {
    auto found = to_device.find(host.unsafeGetStorageImpl());
    if (found == to_device.end()) {  // the operator made it
      c10::Storage made(c10::Storage::use_byte_size_t(), host.nbytes(), copied(host), &memory(), true);
      remember(made, host);
      return made;
    }
    auto storage = found->second;
    auto* impl = storage.unsafeGetStorageImpl();
    if (host.data() != host_view(impl->data()) || host.nbytes() != impl->nbytes()) {  // the operator resized it
      impl->set_data_ptr_noswap(copied(host));
      impl->set_nbytes(host.nbytes());
    }
    return storage;
  }

  // Takes over what the operator changed about its arguments' storages and shapes.
  void settle() {
    for (size_t i = 0; i < pairs.size(); ++i) {
      auto [tensor, host] = pairs[i];
      auto storage = device_of(host.storage());
      if (storage.unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl())
        tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
      if (tensor.sizes() != host.sizes() || tensor.strides() != host.strides() || tensor.storage_offset() != host.storage_offset())
        set_shape(tensor, host);
    }
  }

  Tensor result(const Tensor& host) {
    if (!host.defined() || !host.device().is_cpu() || host.layout() != c10::kStrided) return host;
    for (auto& [tensor, view] : pairs)
      if (view.is_same(host)) return tensor;
    return tensor_over(device_of(host.storage()), c10::DispatchKey::CUDA, host);
  }
};

// ---- every operator without a kernel of its own

static const std::set<std::string> MAY_MIX = {  // indices of the CPU into a device tensor
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_unsafe_index_put"};
static const std::set<std::string> SHAPE_ONLY = {  // change a tensor, or read it, without touching its memory
    "aten::set_", "aten::resize_", "aten::as_strided_", "aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_",
    "aten::detach_", "aten::is_set_to"};

static bool touches_no_memory(const c10::FunctionSchema& schema) {
  if (SHAPE_ONLY.count(schema.name())) return true;
  for (auto& one : schema.returns())  // a view
    if (one.alias_info() && !one.alias_info()->isWrite()) return true;
  return false;
}

static bool writes(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

template <typename Do>
static void each_tensor(const c10::IValue& value, Do act) {
  if (value.isTensor()) act(value.toTensor());
  else if (value.isTensorList())
    for (const Tensor& one : value.toTensorVector()) act(one);
  else if (value.isOptionalTensorList())
    for (const auto& one : value.toOptionalTensorVector())
      if (one) act(*one);
}

static int find_device(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
  int found = -1;
  auto see = [&](const Tensor& tensor) {
    if (!on_device(tensor)) return;
    TORCH_CHECK(found < 0 || found == tensor.device().index(), "Expected all tensors to be on the same device, but found at least "
                "two devices, cuda:", found, " and ", tensor.device(), "! (", schema.name(), ")");
    found = tensor.device().index();
  };
  for (auto& one : arguments) each_tensor(one, see);
  for (auto& one : arguments)
    if (found < 0 && one.isDevice() && one.toDevice().type() == CUDA)
      found = one.toDevice().has_index() ? one.toDevice().index() : current_device();
  if (found < 0) found = current_device();
  auto reject = [&](const Tensor& tensor) {  // a number in a tensor of the CPU is allowed
    TORCH_CHECK(!tensor.defined() || !tensor.device().is_cpu() || tensor.dim() == 0 || MAY_MIX.count(schema.name()),
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", found, " and cpu! (",
                schema.name(), ")");
  };
  for (auto& one : arguments) each_tensor(one, reject);
  return found;
}

static c10::IValue on_host(const c10::IValue& value, const c10::Argument& argument, Views& views) {
  auto turn = [&](const Tensor& tensor) { return on_device(tensor) ? views.host(tensor) : tensor; };
  if (value.isTensor()) return turn(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> turned;
    for (const Tensor& one : value.toTensorVector()) turned.push_back(turn(one));
    return turned;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> turned;
    for (const auto& one : value.toOptionalTensorVector()) turned.push_back(one ? std::optional<Tensor>(turn(*one)) : one);
    return turned;
  }
  if (value.isDevice() && value.toDevice().type() == CUDA) return c10::Device(c10::kCPU);
  if (value.isStorage() && value.toStorage().device_type() == CUDA) return views.host_of(value.toStorage());
  if (value.isGenerator()) {
    auto generator = value.toGenerator();
    TORCH_CHECK(generator.device().type() == CUDA, "Expected a 'cuda' device type for generator but found 'cpu'");
    return host_generator(generator);
  }
  auto optional = argument.type()->cast<c10::OptionalType>();
  if (value.isNone() && optional && optional->getElementType()->kind() == c10::TypeKind::GeneratorType)
    return host_generator(default_generator(views.device));
  return value;
}

static void run_on_host(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  auto& schema = operation.schema();
  auto arguments = torch::jit::pop(*stack, schema.arguments().size());
  int device = find_device(schema, arguments);
  auto& launching = current_stream(device);
  bool touches = !touches_no_memory(schema);
  if (touches) drain(launching);
  Lock lock(mutex());
  if (touches) {
    tick(launching);
    for (size_t i = 0; i < arguments.size(); ++i)
      each_tensor(arguments[i], [&](const Tensor& tensor) {
        if (on_device(tensor)) use(launching, tensor, writes(schema.arguments()[i]), schema.name());
      });
  }
  Views views{device};
  for (size_t i = 0; i < arguments.size(); ++i) stack->push_back(on_host(arguments[i], schema.arguments()[i], views));
  {
    Below below;
    operation.callBoxed(stack);
  }
  views.settle();
  auto results = torch::jit::pop(*stack, schema.returns().size());
  for (auto& value : results) {
    if (value.isTensor()) value = views.result(value.toTensor());
    else if (value.isTensorList()) {
      c10::List<Tensor> turned;
      for (const Tensor& one : value.toTensorVector()) turned.push_back(views.result(one));
      value = turned;
    }
    stack->push_back(value);
  }
}

// ---- operators with a kernel of their own

static Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                            std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  int index = device && device->has_index() ? device->index() : current_device();
  auto type = dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()));
  size_t bytes = at::detail::computeStorageNbytes(size, stride, at::elementSize(type));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, memory().allocate_on(index, bytes), &memory(), true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                       c10::scalarTypeToTypeMeta(type));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return made;
}

static Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
                    std::optional<c10::Device> device, std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
  std::vector<int64_t> stride(size.size());
  if (format == c10::MemoryFormat::ChannelsLast) stride = c10::get_channels_last_strides_2d(size);
  else if (format == c10::MemoryFormat::ChannelsLast3d) stride = c10::get_channels_last_strides_3d(size);
  else {
    int64_t step = 1;
    for (int i = int(size.size()) - 1; i >= 0; --i) {
      stride[i] = step;
      step *= std::max<int64_t>(size[i], 1);
    }
  }
  return empty_strided(size, stride, dtype, layout, device, pin);
}

// Pinned memory that copies from the device will write when they happen: beginning -> end.
struct Downloads {
  std::mutex guard;
  std::multimap<const char*, const char*> ranges;

  void begin(const Tensor& to) {
    std::lock_guard<std::mutex> lock(guard);
    auto first = static_cast<const char*>(to.data_ptr());
    ranges.emplace(first, first + to.nbytes());
  }
  void end(const Tensor& to) {
    std::lock_guard<std::mutex> lock(guard);
    ranges.erase(ranges.find(static_cast<const char*>(to.data_ptr())));
  }
  bool touch(const Tensor& from) {
    std::lock_guard<std::mutex> lock(guard);
    auto first = static_cast<const char*>(from.data_ptr()), last = first + from.nbytes();
    return std::any_of(ranges.begin(), ranges.end(), [&](auto& range) { return range.first < last && first < range.second; });
  }
};
static Downloads& downloads() {
  static Downloads* found = new Downloads;
  return *found;
}

// A copy between pinned memory and the device that happens when the stream is waited for.
static void copy_later(Stream& stream, const Tensor& self, const Tensor& source) {
  Lock lock(mutex());
  tick(stream);
  bool up = on_device(self);
  use(stream, up ? self : source, up, "a copy that was not waited for");
  Tensor to = up ? host_tensor(self) : self, from = up ? source : host_tensor(source), before;
  // Memory of the CPU stays until the copy is over, as torch's allocator of pinned memory does it.
  // What an earlier copy of the device has still to write may change: it is in order before this one.
  if (up && source.nbytes() <= LARGEST_COMPARED && !downloads().touch(source)) before = source.clone();
  if (!up) downloads().begin(to);
  if (idle()) spoil(to);  // an older operation may still read it
  push(stream, {[to, from, before, up] {
    Below below;
    if (!up) downloads().end(to);
    TORCH_CHECK(!before.defined() || memcmp(before.data_ptr(), from.data_ptr(), from.nbytes()) == 0,
                "emulated CUDA: pinned memory was changed before its copy to the device was waited for");
    const_cast<Tensor&>(to).copy_(from);
  }});
}

static Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  Below below;
  bool up = on_device(self), down = on_device(source);
  auto& own = current_stream(down ? source.device().index() : self.device().index());
  bool plain = self.dtype() == source.dtype() && self.sizes() == source.sizes() && self.is_contiguous() && source.is_contiguous();
  if (non_blocking && up != down && plain && is_pinned(up ? source.data_ptr() : self.data_ptr())) {
    copy_later(own, self, source);
    return self;
  }
  bool between = up && down && self.device() != source.device();
  auto& other = between ? current_stream(self.device().index()) : own;
  if (between) wait_for(own, record(other));
  drain(own);
  {
    Lock lock(mutex());
    tick(own);
    if (down) use(own, source, false, "aten::copy_");
    if (up) use(own, self, true, "aten::copy_");
    Tensor to = up ? host_tensor(self) : self;
    to.copy_(down ? host_tensor(source) : source);
  }
  if (between) {
    wait_for(other, record(own));
    drain(other);
  } else if (up != down && !(non_blocking && up)) host_waited(own.clock);
  return self;
}

static c10::Scalar item(const Tensor& tensor) {
  auto& own = current_stream(tensor.device().index());
  drain(own);
  Lock lock(mutex());
  Below below;
  tick(own);
  use(own, tensor, false, "aten::_local_scalar_dense");
  host_waited(own.clock);
  return host_tensor(tensor).item();
}

static void record_stream(Tensor& tensor, c10::Stream on) { memory().recordStream(tensor.storage().data_ptr(), on); }

static int64_t sdp_choice(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                          std::optional<double>, bool) {
  return 0;  // by elementary operators
}

static std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (!train.value_or(true) || !input.numel()) return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  auto mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0. : 1. / (1. - p)), mask};
}

static std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& cx,
                                                    const std::optional<Tensor>& input_bias,
                                                    const std::optional<Tensor>& hidden_bias) {
  auto gates = input_gates + hidden_gates;
  if (input_bias && input_bias->defined()) gates = gates + *input_bias + *hidden_bias;
  auto parts = gates.chunk(4, 1);
  auto in = parts[0].sigmoid(), forget = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  auto cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

static std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                             const std::optional<Tensor>& grad_cy, const Tensor& cx,
                                                             const Tensor& cy, const Tensor& workspace, bool has_bias) {
  auto parts = workspace.chunk(4, 1);
  auto &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  auto curve = cy.tanh();
  auto grad_h = grad_hy && grad_hy->defined() ? *grad_hy : at::zeros_like(cy);
  auto grad_c = grad_h * out * (1 - curve * curve);
  if (grad_cy && grad_cy->defined()) grad_c = grad_c + *grad_cy;
  auto grad_gates = at::cat({grad_c * cell * in * (1 - in), grad_c * cx * forget * (1 - forget), grad_c * in * (1 - cell * cell),
                             grad_h * curve * out * (1 - out)}, 1);
  return {grad_gates, grad_c * forget, has_bias ? grad_gates.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy);
  library.impl("_local_scalar_dense", &item);
  library.impl("record_stream", &record_stream);
  library.impl("_fused_sdp_choice", &sdp_choice);
  library.impl("native_dropout", &dropout);
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
}

}  // namespace emulated
