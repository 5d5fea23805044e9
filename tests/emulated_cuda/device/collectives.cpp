// A process group named NCCL over gloo: it takes device tensors only, and its results arrive when they are waited for.
//
// gloo starts on copies of the inputs at once, so that no rank waits for another one's laziness; the outputs are NaN until a
// stream or the host waits. That an input changes too early, or that an output is used too early, shows by the clocks.
#include "emulated.h"

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/utils/pybind.h>

#include <unistd.h>

namespace emulated {

using namespace c10d;
using at::Tensor;
using Tensors = std::vector<Tensor>;
template <typename T>
using Pointer = c10::intrusive_ptr<T>;
using Works = std::vector<Pointer<Work>>;

static c10::intrusive_ptr<c10::ivalue::Future> new_future(const Tensors& outputs) {
  std::vector<c10::Device> devices;
  if (!outputs.empty()) devices.push_back(outputs[0].device());
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
}

// Work of the device: `wait` makes the current stream wait, not the host. Only a barrier waits on the host.
struct DeviceWork : Work {
  std::shared_ptr<Event> end;
  std::function<bool()> over;  // gloo has finished
  Tensors outputs;
  Pointer<c10::ivalue::Future> future;
  bool on_host;

  DeviceWork(int rank, OpType type, std::shared_ptr<Event> end, std::function<bool()> over, Tensors outputs)
      : Work(rank, type), end(std::move(end)), over(std::move(over)), outputs(std::move(outputs)),
        future(new_future(this->outputs)), on_host(type == OpType::BARRIER) {
    // As NCCL does: the future is complete at once, its values belong to the collective's stream.
    auto& stream = *this->end->stream;
    auto device = current_device(), before = int(emulated::current_stream(stream.device).id);
    set_current_device(stream.device);
    set_current_stream(stream.device, stream.id);
    future->markCompleted(c10::IValue(this->outputs));
    set_current_stream(stream.device, before);
    set_current_device(device);
  }
  bool isCompleted() override {
    if (!end->done && over()) run_until(*end->stream, end->position);
    if (end->done) host_waited(end->clock);
    return end->done;
  }
  bool isSuccess() const override { return end->done; }
  bool wait(std::chrono::milliseconds) override {
    if (on_host) {
      run_until(*end->stream, end->position);
      host_waited(end->clock);
    } else wait_for(current_stream(end->stream->device), end);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  Pointer<c10::ivalue::Future> getFuture() override { return future; }
  Tensors result() override { return outputs; }
};

// What gloo is asked to do on copies: how it is started, and what is done with the copies at the end.
struct Inner {
  Works works;
  std::function<void()> finish = [] {};
};

struct Nccl : Backend {
  struct Options : Backend::Options {
    Options() : Backend::Options("nccl") {}
    bool is_high_priority_stream = false;
    int64_t split_color = 0;
  };

  Pointer<Backend> gloo;
  Pointer<Store> store;
  Pointer<Options> options;
  int device = -1;
  Stream* own = nullptr;
  uint64_t sequence = 0;
  bool coalescing = false;
  Works held;

  Nccl(Pointer<Backend> gloo, Pointer<Store> store, int rank, int size, Pointer<Options> options)
      : Backend(rank, size), gloo(std::move(gloo)), store(std::move(store)), options(std::move(options)) {}

  const std::string getBackendName() const override { return "nccl"; }
  Pointer<Backend::Options> getBackendOptions() override { return options; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo->setTimeout(timeout); }

  // ---- one communicator, one device

  void check(const Tensors& tensors, bool collective = true) {
    for (auto& one : tensors) {
      TORCH_CHECK(one.device().type() == CUDA, "No backend type associated with device type cpu (NCCL takes CUDA tensors only)");
      TORCH_CHECK(!collective || one.is_contiguous(one.suggest_memory_format()), "Tensors must be contiguous");
      meet(one.device().index());
    }
  }

  void meet(int chosen) {
    TORCH_CHECK(device < 0 || device == chosen, "emulated NCCL: this group is on cuda:", device, ", the tensor on cuda:", chosen);
    if (device >= 0) return;
    device = chosen;
    own = &new_stream(device);
    // The last rank to come sees all others; nobody waits, because a group may only ever send between two ranks.
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    auto mine = std::string(name) + "/" + std::to_string(physical_devices()[device]);
    store->set("device" + std::to_string(rank_), mine);
    for (int other = 0; other < size_; ++other) {
      auto key = "device" + std::to_string(other);
      if (other == rank_ || !store->check({key})) continue;
      TORCH_CHECK(store->get_to_str(key) != mine, "NCCL error: invalid usage. Duplicate GPU detected: rank ", rank_, " and rank ",
                  other, " both on CUDA device ", mine);
    }
  }

  // ---- launches

  // The copies of inputs are taken, `start` begins with them, and its results `from[i]` are written to `to[i]` later.
  Pointer<Work> launch(OpType type, const Tensors& inputs, const Tensors& to, bool async,
                       const std::function<Inner(Tensors)>& start, const std::function<Tensors()>& from) {
    ++sequence;
    if (device < 0) meet(current_device());
    auto& caller = current_stream(device);
    auto& stream = async || coalescing ? *own : caller;
    if (&stream != &caller) wait_for(stream, record(caller));
    drain(caller);
    if (&stream != &caller && !coalescing) drain_writers(stream, inputs);
    Tensors copies;
    {
      Lock lock(mutex());
      tick(stream);
      auto name = "nccl:" + opTypeToString(type);
      for (auto& one : inputs) use(stream, one, false, name);
      for (auto& one : to) use(stream, one, true, name);
      for (auto& one : inputs) copies.push_back(host_tensor(one).clone());
      for (auto& one : to) spoil(host_tensor(one));
      for (auto* all : {&inputs, &to})
        for (auto& one : *all) keep_for(stream, one);
    }
    auto inner = std::make_shared<Inner>(start(copies));
    auto await = [inner] {
      for (auto& work : inner->works) work->wait(kNoTimeout);
    };
    auto over = [inner] {
      for (auto& work : inner->works)
        if (!work->isCompleted()) return false;
      return true;
    };
    push(stream, {[inner, from, to, inputs] {
      at::AutoDispatchBelowADInplaceOrView below;
      inner->finish();
      auto results = from();
      for (size_t i = 0; i < to.size(); ++i) host_tensor(to[i]).copy_(results[i]);
    }, await});
    pending.push_back({{}, stream.pushed});
    for (auto& one : to) pending.back().outputs.insert(one.storage().data());
    auto work = c10::make_intrusive<DeviceWork>(rank_, type, record(stream), over, to);
    if (coalescing) held.push_back(work);
    return async || coalescing ? work : nullptr;  // a synchronous one is in the caller's stream: nothing to wait for
  }

  // An input that an earlier collective of this stream still has to write: it must be written before it is copied.
  struct Pending {
    std::set<const void*> outputs;  // memory, not tensors: those are the program's to free
    uint64_t position;
  };
  std::deque<Pending> pending;
  void drain_writers(Stream& stream, const Tensors& inputs) {
    while (!pending.empty() && pending.front().position <= stream.done) pending.pop_front();
    for (auto& one : pending)
      for (auto& input : inputs)
        if (one.outputs.count(input.storage().data())) run_until(stream, one.position);
  }

  // ---- coalescing

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override {
    coalescing = true;
    held.clear();
  }
  Pointer<Work> endCoalescing() override {
    coalescing = false;
    auto all = std::make_shared<Works>(std::move(held));
    if (device < 0) meet(current_device());
    auto over = [all] {
      for (auto& work : *all)
        if (!work->isCompleted()) return false;
      return true;
    };
    return c10::make_intrusive<DeviceWork>(rank_, OpType::COALESCED, record(*own), over, Tensors{});
  }

  // ---- collectives

  static ReduceOp summed(ReduceOp op) { return op == ReduceOp::AVG ? ReduceOp(ReduceOp::SUM) : op; }  // gloo has no average
  std::function<void()> averaging(ReduceOp op, Tensors results) {
    if (op != ReduceOp::AVG) return [] {};
    return [results, size = size_] {
      for (auto one : results) one.is_floating_point() ? one.div_(size) : one.div_(size, "trunc");
    };
  }
  static Tensors host_empties(const Tensors& like) {
    Tensors made;
    for (auto& one : like) made.push_back(at::empty(one.sizes(), one.options().device(at::kCPU)));
    return made;
  }

  Pointer<Work> broadcast(Tensors& tensors, const BroadcastOptions& given) override {
    check(tensors);
    auto results = std::make_shared<Tensors>();
    return launch(OpType::BROADCAST, tensors, tensors, given.asyncOp, [&](Tensors copies) {
      *results = copies;
      return Inner{{gloo->broadcast(*results, given)}};
    }, [results] { return *results; });
  }

  Pointer<Work> allreduce(Tensors& tensors, const AllreduceOptions& given) override {
    check(tensors);
    auto results = std::make_shared<Tensors>();
    return launch(OpType::ALLREDUCE, tensors, tensors, given.asyncOp, [&](Tensors copies) {
      *results = copies;
      auto options = given;
      options.reduceOp = summed(given.reduceOp);
      Inner inner;
      for (auto& one : *results) {
        Tensors single{one};
        inner.works.push_back(gloo->allreduce(single, options));
      }
      inner.finish = averaging(given.reduceOp, *results);
      return inner;
    }, [results] { return *results; });
  }

  Pointer<Work> allreduce_coalesced(Tensors& tensors, const AllreduceCoalescedOptions& given) override {
    AllreduceOptions options;
    options.reduceOp = given.reduceOp;
    options.asyncOp = given.asyncOp;
    return allreduce(tensors, options);
  }

  Pointer<Work> reduce(Tensors& tensors, const ReduceOptions& given) override {
    check(tensors);
    auto results = std::make_shared<Tensors>();
    auto to = rank_ == given.rootRank ? tensors : Tensors{};  // other ranks keep theirs
    return launch(OpType::REDUCE, tensors, to, given.asyncOp, [&](Tensors copies) {
      *results = copies;
      auto options = given;
      options.reduceOp = summed(given.reduceOp);
      return Inner{{gloo->reduce(*results, options)}, averaging(given.reduceOp, *results)};
    }, [results] { return *results; });
  }

  Pointer<Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs, const AllgatherOptions& given) override {
    check(inputs);
    check(outputs.at(0));
    auto results = std::make_shared<std::vector<Tensors>>(1, host_empties(outputs[0]));
    return launch(OpType::ALLGATHER, inputs, outputs[0], given.asyncOp, [&](Tensors copies) {
      return Inner{{gloo->allgather(*results, copies, given)}};
    }, [results] { return (*results)[0]; });
  }

  Pointer<Work> _allgather_base(Tensor& output, Tensor& input, const AllgatherOptions& given) override {
    check({output, input});
    TORCH_CHECK(output.numel() == input.numel() * size_, "output tensor size must be equal to world_size times input tensor size");
    auto flat = at::empty({output.numel()}, output.options().device(at::kCPU));
    auto sizes = output.sizes().vec();
    return launch(OpType::_ALLGATHER_BASE, {input}, {output}, given.asyncOp, [&](Tensors copies) {
      if (!input.numel()) return Inner{};
      std::vector<Tensors> parts(1, flat.chunk(size_));
      Tensors one{copies[0].contiguous().view(-1)};
      return Inner{{gloo->allgather(parts, one, given)}};
    }, [flat, sizes] { return Tensors{flat.view(sizes)}; });
  }

  Pointer<Work> reduce_scattered(OpType type, const Tensors& inputs, Tensor& output, ReduceOp op, bool async) {
    check({output});
    check(inputs);
    int64_t begin = 0, all = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs.size() > 1 && int(i) < rank_) begin += inputs[i].numel();
      all += inputs[i].numel();
    }
    if (inputs.size() == 1) {
      TORCH_CHECK(all == output.numel() * size_, "input tensor must be the same size as output size times world size");
      begin = output.numel() * rank_;
    }
    auto flat = std::make_shared<Tensor>();
    auto sizes = output.sizes().vec();
    auto count = output.numel();
    return launch(type, inputs, {output}, async, [&](Tensors copies) {
      Tensors parts;
      for (auto& one : copies) parts.push_back(one.reshape({-1}));
      *flat = at::cat(parts);
      AllreduceOptions options;
      options.reduceOp = summed(op);
      Tensors single{*flat};
      Inner inner;
      if (all) inner.works.push_back(gloo->allreduce(single, options));
      inner.finish = averaging(op, single);
      return inner;
    }, [flat, begin, count, sizes] { return Tensors{flat->narrow(0, begin, count).view(sizes)}; });
  }
  Pointer<Work> _reduce_scatter_base(Tensor& output, Tensor& input, const ReduceScatterOptions& given) override {
    return reduce_scattered(OpType::_REDUCE_SCATTER_BASE, {input}, output, given.reduceOp, given.asyncOp);
  }
  Pointer<Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ReduceScatterOptions& given) override {
    return reduce_scattered(OpType::REDUCE_SCATTER, inputs.at(0), outputs.at(0), given.reduceOp, given.asyncOp);
  }

  Pointer<Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const AllgatherOptions& given) override {
    startCoalescing();
    for (size_t i = 0; i < outputs.size(); ++i) _allgather_base(outputs[i], inputs[i], given);
    return endCoalescing();
  }
  Pointer<Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const ReduceScatterOptions& given) override {
    startCoalescing();
    for (size_t i = 0; i < outputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs[i], given);
    return endCoalescing();
  }

  Pointer<Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const GatherOptions& given) override {
    check(inputs);
    Tensors to;
    auto results = std::make_shared<std::vector<Tensors>>();
    if (rank_ == given.rootRank) {
      check(to = outputs.at(0));
      results->push_back(host_empties(to));
    }
    return launch(OpType::GATHER, inputs, to, given.asyncOp, [&](Tensors copies) {
      return Inner{{gloo->gather(*results, copies, given)}};
    }, [results] { return results->empty() ? Tensors{} : (*results)[0]; });
  }

  Pointer<Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs, const ScatterOptions& given) override {
    check(outputs);
    bool root = rank_ == given.rootRank;
    if (root) check(inputs.at(0));
    auto results = std::make_shared<Tensors>(host_empties(outputs));
    return launch(OpType::SCATTER, root ? inputs[0] : Tensors{}, outputs, given.asyncOp, [&](Tensors copies) {
      std::vector<Tensors> parts;
      if (root) parts.push_back(copies);
      return Inner{{gloo->scatter(*results, parts, given)}};
    }, [results] { return *results; });
  }

  Pointer<Work> alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& out_sizes, std::vector<int64_t>& in_sizes,
                              const AllToAllOptions& given) override {
    check({output, input});
    auto result = host_empties({output})[0];
    return launch(OpType::ALLTOALL_BASE, {input}, {output}, given.asyncOp, [&](Tensors copies) {
      return Inner{{gloo->alltoall_base(result, copies[0], out_sizes, in_sizes, given)}};
    }, [result] { return Tensors{result}; });
  }

  Pointer<Work> alltoall(Tensors& outputs, Tensors& inputs, const AllToAllOptions& given) override {
    check(outputs);
    check(inputs);
    constexpr int TAG = 9000;
    auto results = std::make_shared<Tensors>(host_empties(outputs));
    return launch(OpType::ALLTOALL, inputs, outputs, given.asyncOp, [&](Tensors copies) {
      Inner inner;
      for (int other = 0; other < size_; ++other) {
        Tensors out{copies[other]}, in{(*results)[other]};
        if (other == rank_) in[0].copy_(out[0]);
        else {
          inner.works.push_back(gloo->send(out, other, TAG));
          inner.works.push_back(gloo->recv(in, other, TAG));
        }
      }
      inner.finish = [copies] {};
      return inner;
    }, [results] { return *results; });
  }

  Pointer<Work> send(Tensors& tensors, int peer, int tag) override {
    check(tensors, false);
    return launch(OpType::SEND, tensors, {}, true, [&](Tensors copies) {
      return Inner{{gloo->send(copies, peer, tag)}, [copies] {}};
    }, [] { return Tensors{}; });
  }

  Pointer<Work> recv(Tensors& tensors, int peer, int tag) override {
    check(tensors, false);
    auto results = std::make_shared<Tensors>(host_empties(tensors));
    return launch(OpType::RECV, {}, tensors, true, [&](Tensors) {
      return Inner{{gloo->recv(*results, peer, tag)}};
    }, [results] { return *results; });
  }

  Pointer<Work> barrier(const BarrierOptions& given) override {
    auto options = given;
    options.device_ids.clear();
    options.device = std::nullopt;
    meet(given.device_ids.empty() ? (device < 0 ? current_device() : device) : int(given.device_ids[0]));
    auto work = launch(OpType::BARRIER, {}, {}, true, [&](Tensors) { return Inner{{gloo->barrier(options)}}; },
                       [] { return Tensors{}; });
    if (given.asyncOp) return work;
    work->wait(kNoTimeout);
    return nullptr;
  }
};

// DistributedDataParallel times its steps; the emulated device has no time of its own.
struct HostTimer : Timer {
  explicit HostTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Timer::Event first, Timer::Event second) override {
    auto start = getTimestamp(first), stop = getTimestamp(second);
    return start && stop ? std::optional<int64_t>(*stop - *start) : std::nullopt;
  }
};
}  // namespace emulated

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, emulated::HostTimer);
}

namespace emulated {

void bind_collectives(py::module_& module) {
  auto names = py::module_::import("torch._C._distributed_c10d");
  py::class_<Nccl, Backend, Pointer<Nccl>> group(module, "ProcessGroupNCCL", py::dynamic_attr());
  py::class_<Nccl::Options, Backend::Options, Pointer<Nccl::Options>>(group, "Options", py::dynamic_attr())
      .def(py::init([](bool high) {
        auto made = c10::make_intrusive<Nccl::Options>();
        made->is_high_priority_stream = high;
        return made;
      }), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &Nccl::Options::is_high_priority_stream)
      .def_readwrite("split_color", &Nccl::Options::split_color);
  auto make = [](const py::object& store, int rank, int size, Pointer<Nccl::Options> options) {
    auto names = py::module_::import("torch._C._distributed_c10d");
    auto prefixed = names.attr("PrefixStore")("emulated", store);
    auto gloo = names.attr("ProcessGroupGloo")(prefixed, rank, size, options->timeout).cast<Pointer<Backend>>();
    return c10::make_intrusive<Nccl>(gloo, prefixed.cast<Pointer<Store>>(), rank, size, options);
  };
  group
      .def(py::init(make), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"))
      .def(py::init([make](const py::object& store, int rank, int size, std::chrono::milliseconds timeout) {
        auto options = c10::make_intrusive<Nccl::Options>();
        options->timeout = timeout;
        return make(store, rank, size, options);
      }), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = kBackendDefaultTimeout)
      .def_property_readonly("options", [](Nccl& self) { return self.options; })
      .def_property_readonly("uid", [](Nccl& self) { return self.getGroupUid(); })
      .def("perform_nocolor_split", [](Nccl&, c10::Device) {})
      .def("comm_split_count", [](Nccl&) { return 0; })
      .def("_group_start", [](Nccl&) {})
      .def("_group_end", [](Nccl&) {});
}

}  // namespace emulated
