// An emulated CUDA device for the CPU-only build of torch: memory, streams and kernels of a device that is not there.
//
// Operators compute on the CPU as soon as they are launched. Copies from and to pinned memory and collectives happen only
// when something legally waits for them, so a program that forgets to wait reads NaN. In addition every stream has a vector
// clock, and every block of memory remembers who used it: two uses that nothing orders are an error, whatever their values.
#pragma once
#include <torch/extension.h>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace emulated {

constexpr auto CUDA = c10::DeviceType::CUDA;

// ---- the process

using Lock = std::lock_guard<std::recursive_mutex>;
// Guards everything below. It is not held while a stream waits for another rank.
std::recursive_mutex& mutex();

// Numbers of the physical devices that CUDA_VISIBLE_DEVICES leaves, in its order; a device's index is its place here.
const std::vector<int>& physical_devices();
int device_count();
// The calling thread's device.
int current_device();
// Throws for an index that is not there, and in a process that was forked from one that had used the device.
void check_device(int device);
void set_current_device(int device);
// From now on a fork makes the child unable to use the device, as with CUDA.
void mark_used();
bool was_forked();
int setting(const char* name, int otherwise);

// ---- streams

// How many operations of each stream (by its number) have happened before.
using Clock = std::vector<uint64_t>;

struct Task {
  std::function<void()> run;
  // Blocks until `run` can be called, without the lock; empty: it can be called at once.
  std::function<void()> await;
};

struct Stream {
  int device;
  int64_t id;
  int number;  // place in clocks; unique in the process
  Clock clock;
  std::deque<Task> waiting;
  uint64_t pushed = 0, done = 0;
  uint64_t now() const { return clock[number]; }
};

struct Event {
  Stream* stream;
  uint64_t position;  // it is done when its stream has run so many tasks
  Clock clock;
  bool done = false;
  std::chrono::steady_clock::time_point time;
};

Stream& stream(int device, int64_t id);
Stream& stream_number(int number);
Stream& new_stream(int device);
Stream& current_stream(int device);
void set_current_stream(int device, int64_t id);

void push(Stream& stream, Task task);
void run_until(Stream& stream, uint64_t position);
void drain(Stream& stream);
void drain_device(int device);
// No stream of the process has anything left to do.
bool idle();

// A launch: what the host knows has happened before it, and it is later than all earlier operations of the stream.
void tick(Stream& stream);
// The stream's further operations come after everything before the event.
std::shared_ptr<Event> record(Stream& stream);
void wait_for(Stream& stream, const std::shared_ptr<Event>& event);
// The host has waited for the stream, or the event.
void host_waited(const Clock& clock);
bool happened_before(int stream, uint64_t time, const Clock& clock);
c10::impl::DeviceGuardImplInterface* guard();

// ---- memory

struct Memory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DataPtr allocate_on(int device, size_t bytes);
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;
  bool initialized() override;
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};

Memory& memory();
c10::Allocator& pinned_memory();
bool is_pinned(const void* pointer);
bool has_context(int device);
// Index of the device that a pointer belongs to; -1: none.
int owner(const void* pointer);
// The host's view of device memory; only the emulator may look through it.
char* host_view(const void* pointer);
// An operation of the stream uses the tensor's memory: throws if an earlier use by another stream is not ordered before it.
void use(Stream& stream, const at::Tensor& tensor, bool writes, const std::string& operation);
// The allocator keeps the tensor's memory until the stream is done with it.
void keep_for(Stream& stream, const at::Tensor& tensor);

// ---- tensors

// A CPU tensor over the device tensor's memory, without a share in its ownership.
at::Tensor host_tensor(const at::Tensor& tensor);
// Fills memory whose contents are not defined yet: NaN, or large integers.
void spoil(const at::Tensor& host);
at::Generator& default_generator(int device);
at::Generator new_generator(int device);
at::Generator& host_generator(const at::Generator& generator);

void bind_collectives(py::module_& module);

}  // namespace emulated
