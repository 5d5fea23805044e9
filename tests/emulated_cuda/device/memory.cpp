// Device memory: an address range that the host cannot read, a readable copy of it, and who used which part when.
#include "emulated.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace emulated {

constexpr size_t ARENA = size_t(64) << 30;  // addresses, not memory
constexpr size_t ROUNDING = 512;            // as CUDA's caching allocator
constexpr size_t LARGEST_FILL = size_t(4) << 20;
constexpr size_t PAGE = 4096;
constexpr size_t FORGET_ABOVE = 32;

struct Use {
  size_t begin, end;  // bytes of the block
  int stream;
  uint64_t time;
  bool writes;
  std::string operation;
};

struct Block {
  int device;
  size_t bytes;
  int stream;  // the allocator may give it away again as soon as this stream allows
  std::vector<Use> uses;
  std::map<int, uint64_t> kept;  // stream -> position until which it is needed (record_stream)
};

struct Device {
  char *forbidden = nullptr, *readable = nullptr;  // the same offsets
  size_t reserved = 0, reserved_peak = 0, now = 0, peak = 0, allocations = 0, frees = 0, allocated = 0, freed = 0, failures = 0;
};

static std::vector<Device>& devices() {
  static auto* all = new std::vector<Device>(device_count());
  return *all;
}
static std::map<const char*, Block>& blocks() {  // in use
  static auto* all = new std::map<const char*, Block>;
  return *all;
}
using Freed = std::vector<std::pair<const char*, Block>>;
static std::map<int, Freed>& just_freed() {  // by the stream of the allocation; not looked at since
  static auto* all = new std::map<int, Freed>;
  return *all;
}
static std::map<std::pair<int, size_t>, std::vector<const char*>>& free_blocks() {  // by stream and size
  static auto* all = new std::map<std::pair<int, size_t>, std::vector<const char*>>;
  return *all;
}
static size_t limit() {
  static const size_t bytes = size_t(setting("EMULATED_CUDA_MIB", 16384)) << 20;
  return bytes;
}

int owner(const void* pointer) {
  for (size_t i = 0; i < devices().size(); ++i) {
    auto* begin = devices()[i].forbidden;
    if (begin && pointer >= begin && pointer < begin + ARENA) return i;
  }
  return -1;
}

char* host_view(const void* pointer) {
  if (!pointer) return nullptr;
  int device = owner(pointer);
  TORCH_CHECK(device >= 0, "CUDA error: an illegal memory access was encountered (not a pointer to memory of the device)");
  auto& found = devices()[device];
  return found.readable + (static_cast<const char*>(pointer) - found.forbidden);
}

bool has_context(int device) { return devices().at(device).forbidden != nullptr; }

// ---- freed memory

// The allocator may give freed memory to the next allocation of the same stream. What another stream still does with it must
// then be over, unless the memory was kept for it.
static void look_at_freed(Stream& stream) {
  Freed still;
  for (auto& [pointer, block] : just_freed()[stream.number]) {
    bool needed = false;
    for (auto& [number, position] : block.kept) needed |= stream_number(number).done < position;
    if (needed) {
      still.emplace_back(pointer, std::move(block));
      continue;
    }
    auto bytes = block.bytes;
    auto uses = std::move(block.uses);
    auto kept = std::move(block.kept);
    free_blocks()[{stream.number, bytes}].push_back(pointer);
    for (auto& use : uses) {
      if (use.stream == stream.number || kept.count(use.stream) || happened_before(use.stream, use.time, stream.clock)) continue;
      just_freed()[stream.number].clear();  // reported once
      TORCH_CHECK(false, "emulated CUDA: memory of stream ", stream.id, " was freed while ", use.operation, " on stream ",
                  stream_number(use.stream).id, " may still use it: no record_stream, and nothing orders them");
    }
  }
  just_freed()[stream.number] = std::move(still);
}

static void fill(const char* pointer, size_t bytes) {
  auto* begin = host_view(pointer);
  if (bytes <= LARGEST_FILL) memset(begin, 0xff, bytes);
  else {  // whole pages only: the rest of the last one belongs to another block
    auto* first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(begin) + PAGE - 1) / PAGE * PAGE);
    madvise(first, (begin + bytes - first) / PAGE * PAGE, MADV_DONTNEED);
  }
}

static void release(void* pointer) {
  if (!pointer || was_forked()) return;
  Lock lock(mutex());
  auto found = blocks().find(static_cast<char*>(pointer));
  if (found == blocks().end()) return;
  Block block = std::move(found->second);
  blocks().erase(found);
  auto& device = devices()[block.device];
  device.now -= block.bytes;
  device.freed += block.bytes;
  ++device.frees;
  auto* begin = static_cast<const char*>(pointer);
  auto& own = stream_number(block.stream);
  for (auto& [number, position] : block.kept) position = stream_number(number).pushed;
  auto bytes = block.bytes;
  if (own.waiting.empty() && block.kept.empty()) fill(begin, bytes);
  just_freed()[own.number].emplace_back(begin, std::move(block));
}

// ---- allocation

static void open(Device& device) {
  auto take = [](int protection) {
    auto* found = mmap(nullptr, ARENA, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(found != MAP_FAILED, "emulated CUDA: no address space");
    return static_cast<char*>(found);
  };
  device.forbidden = take(PROT_NONE);
  device.readable = take(PROT_READ | PROT_WRITE);
}

c10::DataPtr Memory::allocate_on(int index, size_t bytes) {
  check_device(index);
  mark_used();
  c10::Device place(CUDA, c10::DeviceIndex(index));
  if (!bytes) return {nullptr, nullptr, &release, place};
  auto& own = current_stream(index);
  bytes = (bytes + ROUNDING - 1) / ROUNDING * ROUNDING;
  if (devices()[index].now + bytes > limit()) drain_device(index);
  Lock lock(mutex());
  auto& device = devices()[index];
  if (!device.forbidden) open(device);
  look_at_freed(own);
  if (device.now + bytes > limit()) {
    ++device.failures;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", bytes >> 20, " MiB. GPU ", index,
                     " has a total capacity of ", limit() >> 20, " MiB of which ", (limit() - device.now) >> 20, " MiB is free.");
  }
  auto& free = free_blocks()[{own.number, bytes}];
  const char* begin;
  if (free.empty()) {
    begin = device.forbidden + device.reserved;
    device.reserved += bytes;
    TORCH_CHECK(device.reserved <= ARENA, "emulated CUDA: no addresses are left");
    device.reserved_peak = std::max(device.reserved_peak, device.reserved);
  } else {
    begin = free.back();
    free.pop_back();
  }
  // Another stream may use it once what this stream has done so far is over: until then it may belong to an earlier tensor.
  blocks()[begin] = {index, bytes, own.number, {{0, bytes, own.number, own.now(), true, "the allocation"}}};
  device.now += bytes;
  device.allocated += bytes;
  device.peak = std::max(device.peak, device.now);
  ++device.allocations;
  if (own.waiting.empty()) fill(begin, bytes);
  auto* pointer = const_cast<char*>(begin);
  return {pointer, pointer, &release, place};
}

c10::DeleterFnPtr Memory::raw_deleter() const { return &release; }
void Memory::copy_data(void* to, const void* from, std::size_t bytes) const { memcpy(host_view(to), host_view(from), bytes); }
bool Memory::initialized() {
  for (size_t i = 0; i < devices().size(); ++i)
    if (has_context(i)) return true;
  return false;
}

Memory& memory() {
  static auto* one = new Memory;
  return *one;
}

// ---- figures

c10::CachingDeviceAllocator::DeviceStats Memory::getDeviceStats(c10::DeviceIndex index) {
  Lock lock(mutex());
  check_device(index);
  auto& device = devices()[index];
  c10::CachingDeviceAllocator::DeviceStats stats;
  auto set = [](auto& figures, size_t now, size_t peak, size_t up, size_t down) {
    for (auto& one : figures) {
      one.current = now;
      one.peak = peak;
      one.allocated = up;
      one.freed = down;
    }
  };
  for (auto* figures : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes})
    set(*figures, device.now, device.peak, device.allocated, device.freed);
  set(stats.reserved_bytes, device.reserved, device.reserved_peak, device.reserved, 0);
  set(stats.allocation, device.allocations - device.frees, device.allocations, device.allocations, device.frees);
  set(stats.segment, 1, 1, 1, 0);
  stats.num_ooms = device.failures;
  return stats;
}

void Memory::resetAccumulatedStats(c10::DeviceIndex index) {
  auto& device = devices().at(index);
  device.allocated = device.freed = device.failures = 0;
}

void Memory::resetPeakStats(c10::DeviceIndex index) {
  auto& device = devices().at(index);
  device.peak = device.now;
  device.reserved_peak = device.reserved;
}

std::pair<size_t, size_t> Memory::getMemoryInfo(c10::DeviceIndex index) {
  check_device(index);
  return {limit() - devices()[index].now, limit()};
}

// ---- uses

static Block* find(const void* pointer) {
  auto found = blocks().upper_bound(static_cast<const char*>(pointer));
  if (found == blocks().begin()) return nullptr;
  --found;
  return pointer < found->first + found->second.bytes ? &found->second : nullptr;
}

void use(Stream& stream, const at::Tensor& tensor, bool writes, const std::string& operation) {
  if (!tensor.numel() || tensor.layout() != c10::kStrided) return;
  Lock lock(mutex());
  auto* base = static_cast<const char*>(tensor.storage().data());
  auto* block = find(base);
  if (!block) return;
  size_t last = 0, item = tensor.element_size();
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  size_t begin = tensor.storage_offset() * item, end = begin + (last + 1) * item;
  for (auto& other : block->uses) {
    if (!(other.writes || writes) || other.end <= begin || end <= other.begin || other.stream == stream.number ||
        happened_before(other.stream, other.time, stream.clock))
      continue;
    TORCH_CHECK(false, "emulated CUDA: race: ", operation, " on stream ", stream.id, " of cuda:", stream.device,
                writes ? " writes" : " reads", " memory that ", other.operation, " on stream ", stream_number(other.stream).id,
                other.writes ? " writes" : " reads", ", and nothing orders them");
  }
  auto over = [&](const Use& other) {  // nothing can race with it any more, or everything that would races with this use too
    bool inside = begin <= other.begin && other.end <= end;
    return (inside && (writes || (!other.writes && other.stream == stream.number))) ||
           (block->uses.size() > FORGET_ABOVE && happened_before(other.stream, other.time, {}));
  };
  block->uses.erase(std::remove_if(block->uses.begin(), block->uses.end(), over), block->uses.end());
  block->uses.push_back({begin, end, stream.number, stream.now(), writes, operation});
}

void keep_for(Stream& stream, const at::Tensor& tensor) {
  Lock lock(mutex());
  if (auto* block = find(tensor.storage().data())) block->kept[stream.number] = 0;
}

void Memory::recordStream(const c10::DataPtr& pointer, c10::Stream on) {
  Lock lock(mutex());
  if (!pointer.get()) return;
  TORCH_CHECK(owner(pointer.get()) >= 0, "record_stream of memory that does not belong to a device");
  if (auto* block = find(pointer.get())) block->kept[stream(on.device_index(), on.id()).number] = 0;
}

// ---- pinned memory of the host

static std::map<const char*, size_t>& pinned() {
  static auto* all = new std::map<const char*, size_t>;
  return *all;
}

struct Pinned final : c10::Allocator {
  static void drop(void* pointer) {
    Lock lock(mutex());
    pinned().erase(static_cast<char*>(pointer));
    std::free(pointer);
  }
  c10::DataPtr allocate(size_t bytes) override {
    Lock lock(mutex());
    check_device(current_device());
    mark_used();
    if (!bytes) return {nullptr, nullptr, &drop, c10::Device(c10::kCPU)};
    auto* pointer = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    pinned()[pointer] = bytes;
    return {pointer, pointer, &drop, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
};

c10::Allocator& pinned_memory() {
  static auto* one = new Pinned;
  return *one;
}

bool is_pinned(const void* pointer) {
  Lock lock(mutex());
  auto found = pinned().upper_bound(static_cast<const char*>(pointer));
  if (found == pinned().begin()) return false;
  --found;
  return pointer < found->first + found->second;
}

}  // namespace emulated
