// The Python module: gives torch the device, and the functions by which device.py fills in torch.cuda.
#include "emulated.h"

#include <torch/csrc/utils/device_lazy_init.h>

#include <cstring>

namespace emulated {

struct Hooks final : at::CUDAHooksInterface {
  static int index(c10::DeviceIndex device) { return device < 0 ? emulated::current_device() : device; }
  void init() const override {}
  bool hasCUDA() const override { return device_count() > 0; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device = -1) const override { return default_generator(index(device)); }
  at::Generator getNewGenerator(c10::DeviceIndex device = -1) const override { return new_generator(index(device)); }
  c10::Device getDeviceFromPtr(void* pointer) const override { return {CUDA, c10::DeviceIndex(owner(pointer))}; }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  bool hasPrimaryContext(c10::DeviceIndex device) const override { return has_context(device); }
  c10::DeviceIndex current_device() const override { return emulated::current_device(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  int getNumGPUs() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return emulated::current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    auto before = emulated::current_device();
    if (device >= 0) set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  c10::Allocator* getCUDADeviceAllocator() const override { return &memory(); }
  void deviceSynchronize(c10::DeviceIndex device) const override { drain_device(index(device)); }
  std::string showConfig() const override { return "emulated CUDA"; }
};

// `import torch` has asked for the hooks and keeps a stub without fields: that object gets our table of virtual functions.
static void take_over_hooks() {
  static auto* hooks = new Hooks;
  auto& stub = const_cast<at::CUDAHooksInterface&>(at::detail::getCUDAHooks());
  std::memcpy(static_cast<void*>(&stub), static_cast<void*>(static_cast<at::CUDAHooksInterface*>(hooks)), sizeof(void*));
}

// What the build without CUDA leaves out of UntypedStorage.resize_; `tensor` holds the storage.
static void resize_storage(const at::Tensor& tensor, size_t bytes) {
  Lock lock(mutex());
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto pointer = memory().allocate_on(tensor.device().index(), bytes);
  if (auto kept = std::min(bytes, storage->nbytes())) memory().copy_data(pointer.get(), storage->data(), kept);
  storage->set_data_ptr_noswap(std::move(pointer));
  storage->set_nbytes(bytes);
}

static std::map<std::string, int64_t> memory_figures(int device) {
  using c10::CachingAllocator::StatType;
  auto stats = memory().getDeviceStats(device);
  std::map<std::string, int64_t> found{{"num_ooms", stats.num_ooms}, {"num_alloc_retries", 0}};
  auto add = [&](const std::string& name, const c10::CachingAllocator::StatArray& figures) {
    auto& one = figures[size_t(StatType::AGGREGATE)];
    for (auto& [word, value] : {std::pair<const char*, int64_t>{"current", one.current}, {"peak", one.peak},
                                {"allocated", one.allocated}, {"freed", one.freed}})
      found[name + "." + word] = value;
  };
  add("allocated_bytes", stats.allocated_bytes);
  add("active_bytes", stats.active_bytes);
  add("requested_bytes", stats.requested_bytes);
  add("reserved_bytes", stats.reserved_bytes);
  add("allocation", stats.allocation);
  add("segment", stats.segment);
  return found;
}

}  // namespace emulated

PYBIND11_MODULE(_device, module) {
  using namespace emulated;
  namespace lazy = torch::utils;
  using Unlocked = py::call_guard<py::gil_scoped_release>;  // no thread waits for our lock while it holds Python's
  c10::SetAllocator(CUDA, &memory());
  c10::impl::registerDeviceGuard(CUDA, guard());
  take_over_hooks();
  TORCH_CHECK(at::detail::getCUDAHooks().isBuilt(), "torch's CUDA hooks were not taken over");
  module.def("count", &device_count);
  module.def("count_by_driver", [] {  // as cudaGetDeviceCount, it makes a later fork unable to use the device
    lazy::register_fork_handler_for_device_init(CUDA);
    return device_count();
  });
  module.def("start", [] {
    lazy::register_fork_handler_for_device_init(CUDA);
    TORCH_CHECK(device_count() > 0, "No CUDA GPUs are available");
    mark_used();
  });
  module.def("in_bad_fork", [] { return lazy::is_device_in_bad_fork(CUDA); });
  module.def("physical", [](int device) { return physical_devices().at(device); });
  module.def("device", &current_device);
  module.def("set_device", &set_current_device);
  module.def("stream", [](int device) {
    device = device < 0 ? current_device() : device;
    return std::make_pair(current_stream(device).id, device);
  }, Unlocked());
  module.def("set_stream", [](int64_t id, int device) { set_current_stream(device, id); });
  module.def("synchronize", [] { drain_device(current_device()); }, Unlocked());
  module.def("elapsed", [](int64_t first, int64_t second) {
    return guard()->elapsedTime(reinterpret_cast<void*>(first), reinterpret_cast<void*>(second), 0);
  }, Unlocked());
  module.def("generator", [](int device) { return default_generator(device); }, Unlocked());
  module.def("has_context", &has_context);
  module.def("memory_figures", &memory_figures, Unlocked());
  module.def("memory_info", [](int device) { return memory().getMemoryInfo(device); });
  module.def("reset_peak", [](int device) { memory().resetPeakStats(device); });
  module.def("resize_storage", &resize_storage, Unlocked());
  bind_collectives(module);
}
