// Devices, streams, events and their clocks: the process's state and the guard through which torch reaches it.
#include "emulated.h"

#include <pthread.h>

#include <cstdlib>
#include <thread>

namespace emulated {

std::recursive_mutex& mutex() {
  static auto* one = new std::recursive_mutex;
  return *one;
}

int setting(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value && *value ? atoi(value) : otherwise;
}

// ---- devices

static std::vector<int> find_devices() {
  int present = setting("EMULATED_CUDA_DEVICES", 2);
  std::vector<int> found;
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (!visible) {
    for (int i = 0; i < present; ++i) found.push_back(i);
    return found;
  }
  std::stringstream parts(visible);
  for (std::string part; std::getline(parts, part, ',');) {
    int number = -1;  // CUDA stops at the first name that it does not know
    if (part.rfind("GPU-", 0) == 0 && part.size() >= 12) number = atoi(part.substr(4, 8).c_str());
    else if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) number = atoi(part.c_str());
    if (number < 0 || number >= present) break;
    found.push_back(number);
  }
  return found;
}

const std::vector<int>& physical_devices() {
  static const auto* found = new std::vector<int>(find_devices());
  return *found;
}

int device_count() { return physical_devices().size(); }

static bool used = false, forked = false;
static thread_local int current = 0;

void mark_used() {
  if (used) return;
  used = true;
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

bool was_forked() { return forked; }

void check_device(int device) {
  TORCH_CHECK_WITH(Error, !forked, "CUDA error: initialization error (this process was forked from one that had used CUDA)");
  TORCH_CHECK_WITH(Error, device >= 0 && device < device_count(), "CUDA error: invalid device ordinal (", device, " of ",
                   device_count(), ")");
}

int current_device() { return current; }

void set_current_device(int device) {
  check_device(device);
  current = device;
}

// ---- streams

static std::map<std::pair<int, int64_t>, Stream*>& streams() {
  static auto* all = new std::map<std::pair<int, int64_t>, Stream*>;
  return *all;
}
static std::vector<Stream*>& by_number() {
  static auto* all = new std::vector<Stream*>;
  return *all;
}
static Clock& host_clock() {
  static auto* clock = new Clock;
  return *clock;
}
static std::map<int, int64_t>& currents() {
  static thread_local auto* chosen = new std::map<int, int64_t>;
  return *chosen;
}

Stream& stream(int device, int64_t id) {
  Lock lock(mutex());
  check_device(device);
  auto& found = streams()[{device, id}];
  if (!found) {
    int number = by_number().size();
    found = new Stream{device, id, number, Clock(number + 1)};
    by_number().push_back(found);
  }
  return *found;
}

Stream& stream_number(int number) { return *by_number()[number]; }

Stream& new_stream(int device) {
  Lock lock(mutex());
  return stream(device, by_number().size() + 1);  // above the default stream 0, and not used before
}

Stream& current_stream(int device) { return stream(device, currents()[device]); }
void set_current_stream(int device, int64_t id) { currents()[device] = id; }

void push(Stream& stream, Task task) {
  static const bool eager = setting("EMULATED_CUDA_EAGER", 0);  // to tell an error of the program from one of this device
  {
    Lock lock(mutex());
    ++stream.pushed;
    stream.waiting.push_back(std::move(task));
  }
  if (eager) drain(stream);
}

void run_until(Stream& stream, uint64_t position) {
  for (;;) {
    std::function<void()> await;
    Task task;  // what it holds is released without the lock: torch may need Python's for that
    uint64_t turn;
    {
      Lock lock(mutex());
      if (stream.done >= position || stream.waiting.empty()) return;
      if (!stream.waiting.front().await) {
        task = std::move(stream.waiting.front());
        stream.waiting.pop_front();
        ++stream.done;
        task.run();
        continue;
      }
      await = stream.waiting.front().await;
      turn = stream.done;
    }
    await();  // other threads may wait for the same
    Lock lock(mutex());
    if (stream.done == turn && !stream.waiting.empty()) stream.waiting.front().await = nullptr;
  }
}

void drain(Stream& stream) { run_until(stream, stream.pushed); }

static std::vector<Stream*> of_device(int device) {
  Lock lock(mutex());
  std::vector<Stream*> found;
  for (auto* one : by_number())
    if (one->device == device) found.push_back(one);
  return found;
}

void drain_device(int device) {
  check_device(device);
  for (auto* one : of_device(device)) {
    drain(*one);
    host_waited(one->clock);
  }
}

bool idle() {
  for (auto* one : by_number())
    if (!one->waiting.empty()) return false;
  return true;
}

// ---- clocks

static void join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

void tick(Stream& stream) {
  Lock lock(mutex());
  check_device(stream.device);
  mark_used();
  join(stream.clock, host_clock());
  ++stream.clock[stream.number];
}

bool happened_before(int stream, uint64_t time, const Clock& clock) {
  auto knows = [&](const Clock& one) { return size_t(stream) < one.size() && one[stream] >= time; };
  return time == 0 || knows(clock) || knows(host_clock());
}

void host_waited(const Clock& clock) {
  Lock lock(mutex());
  join(host_clock(), clock);
}

// ---- events

std::shared_ptr<Event> record(Stream& stream) {
  Lock lock(mutex());
  tick(stream);
  auto event = std::make_shared<Event>(Event{&stream, stream.pushed + 1, stream.clock});
  push(stream, {[event] {
    event->done = true;
    event->time = std::chrono::steady_clock::now();
  }});
  if (stream.waiting.size() == 1) drain(stream);
  return event;
}

void wait_for(Stream& stream, const std::shared_ptr<Event>& event) {
  Lock lock(mutex());
  join(stream.clock, event->clock);
  if (event->done || event->stream == &stream) return;
  push(stream, {[] {}, [event] { run_until(*event->stream, event->position); }});
}

static void finish(const std::shared_ptr<Event>& event) {
  run_until(*event->stream, event->position);
  host_waited(event->clock);
}

// ---- what torch calls

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  static Device named(int device) { return {CUDA, c10::DeviceIndex(device)}; }
  static int index(Device device) { return device.has_index() ? device.index() : current; }
  static c10::Stream as_stream(const Stream& one) { return c10::Stream(c10::Stream::UNSAFE, named(one.device), one.id); }
  static Stream& own(const c10::Stream& one) { return stream(one.device_index(), one.id()); }
  using Held = std::shared_ptr<Event>;
  static Held held(void* event) { return event ? *static_cast<Held*>(event) : nullptr; }

  c10::DeviceType type() const override { return CUDA; }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  Device getDevice() const override { return named(current); }
  void setDevice(Device device) const override { set_current_device(index(device)); }
  void uncheckedSetDevice(Device device) const noexcept override { current = index(device); }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    if (device.has_index()) setDevice(device);
    return before;
  }

  c10::Stream getStream(Device device) const override { return as_stream(current_stream(index(device))); }
  c10::Stream getDefaultStream(Device device) const override { return as_stream(stream(index(device), 0)); }
  c10::Stream getNewStream(Device device, int) const override { return as_stream(new_stream(index(device))); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream chosen) const override {
    auto before = getStream(chosen.device());
    set_current_stream(chosen.device_index(), chosen.id());
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream one) const override { return reinterpret_cast<void*>(one.id()); }
  bool queryStream(const c10::Stream& one) const override {
    bool empty = own(one).waiting.empty();
    if (empty) host_waited(own(one).clock);
    else drain(own(one));  // so that a loop of queries ends
    return empty;
  }
  void synchronizeStream(const c10::Stream& one) const override {
    drain(own(one));
    host_waited(own(one).clock);
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { drain_device(device < 0 ? current : device); }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Held*>(event); }
  void record(void** event, const c10::Stream& on, const c10::DeviceIndex device, const c10::EventFlag) const override {
    TORCH_CHECK(device < 0 || device == on.device_index(), "Event device index ", int(device),
                " does not match recording stream's device index ", int(on.device_index()), ".");
    auto made = emulated::record(own(on));
    if (*event) *static_cast<Held*>(*event) = made;
    else *event = new Held(made);
  }
  void block(void* event, const c10::Stream& on) const override {
    if (auto found = held(event)) wait_for(own(on), found);
  }
  bool queryEvent(void* event) const override {
    auto found = held(event);
    if (!found) return true;
    if (found->done) host_waited(found->clock);
    else {
      run_until(*found->stream, found->position);  // so that a loop of queries ends
      return false;
    }
    return true;
  }
  void synchronizeEvent(void* event) const override {
    if (auto found = held(event)) finish(found);
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& on) const override {
    memory().recordStream(pointer, on);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto start = held(first), stop = held(second);
    TORCH_CHECK(start && stop, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(start->stream->device == stop->stream->device, "CUDA error: invalid resource handle (events of two devices)");
    TORCH_CHECK(start->done && stop->done, "CUDA error: device not ready");
    return std::chrono::duration<double, std::milli>(stop->time - start->time).count();
  }
};

c10::impl::DeviceGuardImplInterface* guard() {
  static auto* one = new Guard;
  return one;
}

}  // namespace emulated
