#include "minka/profiler/profile.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "minka/analysis/flops.h"
#include "minka/base/core_distance.h"
#include "minka/base/file.h"
#include "minka/base/file_descriptor.h"
#include "minka/base/hash.h"
#include "minka/base/parallel.h"
#include "minka/base/processor_time.h"
#include "minka/base/status.h"
#include "minka/ir/hlo_proto.h"
#include "minka/lowering/compiled_forms.h"
#include "minka/profiler/grid.h"
#include "minka/profiler/microprograms.h"
#include "minka/runtime/pjrt/executable.h"

namespace minka {
namespace {

// So long at least is each program measured, and where four times that is reached by so few
// launches; again, up to so many times, while the host of this virtual machine gives more than this
// part of the time to others.
constexpr double kMeasuredUs = 80e3;
constexpr int kFewestLaunches = 3;
constexpr int kMaxRounds = 5;
constexpr int kTurns = 21;  // of programs that are compared
constexpr double kMostStolen = 0.05;
// So often at most is measured again what was measured while the cores were elsewhere than mostly,
// within half of the time that all took, and so long at most is waited for them to be back.
constexpr int kMostPasses = 4;
constexpr std::chrono::seconds kLongestWaits(60);

constexpr ReductionKernel kReductions[] = {
    ReductionKernel::kRows, ReductionKernel::kColumns, ReductionKernel::kMaximumOfRows,
    ReductionKernel::kWindow, ReductionKernel::kWindowGradient};

constexpr ReshardKind kCollectives[] = {ReshardKind::kAllReduce, ReshardKind::kAllGather,
                                        ReshardKind::kReduceScatter, ReshardKind::kAllToAll};
// Not powers of two either.
constexpr int64_t kCollectiveBytes[] = {256,        3 << 10, 48 << 10, 384 << 10,
                                        1536 << 10, 6 << 20, 20 << 20};
constexpr int64_t kStridedBytes[] = {256, 48 << 10, 1536 << 10};

// In a program, whose matrices take no more than 640 MiB unless one alone does.
int CollectiveCount(int64_t bytes, int64_t num_devices) {
  constexpr int64_t kMostBytes = int64_t{640} << 20;
  const int count = bytes <= 64 << 10 ? 32 : bytes <= 1 << 20 ? 16 : bytes <= 8 << 20 ? 8 : 4;
  return static_cast<int>(std::clamp<int64_t>(kMostBytes / (bytes * num_devices), 1, count));
}

// A GPU has the name that its driver gives it, virtual devices that of the processor.
std::string ProcessorName(const pjrt::Client& client) {
  if (client.kind() != Platform::kCpu) return client.devices().front().kind;
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

// Numbers below a half, of both signs, that repeat after a prime number of elements; zeros where
// the type is none of f32 and bf16.
Literal DrawnLiteral(const Shape& shape) {
  constexpr int64_t kPeriod = 8191;
  const bool is_half = shape.type == ElementType::kBF16;
  if (!is_half && shape.type != ElementType::kF32) return FilledLiteral(shape, 0);
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> numbers(-0.5F, 0.5F);
  std::string period;
  for (int64_t i = 0; i < kPeriod; ++i) {
    const auto bits = std::bit_cast<std::array<char, sizeof(float)>>(numbers(random));
    period.append(is_half ? bits.data() + sizeof(float) / 2 : bits.data(),
                  is_half ? sizeof(float) / 2 : sizeof(float));
  }
  std::string bytes;
  bytes.reserve(shape.num_bytes() + period.size());
  while (static_cast<int64_t>(bytes.size()) < shape.num_bytes()) bytes += period;
  bytes.resize(shape.num_bytes());
  return {shape, std::make_shared<const std::string>(std::move(bytes))};
}

// Bytes per microsecond at which all cores together read what they have just read. By memchr, which
// uses the widest registers there are: a loop of additions is as slow as memory is.
double RereadRate(int64_t bytes, int cores) {
  constexpr int64_t kBytesRead = int64_t{256} << 20;
  const int64_t passes = std::max<int64_t>(2, kBytesRead / bytes);
  std::barrier all_begin(cores);
  std::vector<double> us(cores);
  std::vector<int> found(cores);  // or nothing is read
  std::vector<std::thread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      const std::vector<char> data(bytes / cores, 'x');
      const auto read = [&] {
        found[core] += std::memchr(data.data(), 'y', data.size()) != nullptr;
      };
      for (int pass = 0; pass < 2; ++pass) read();
      all_begin.arrive_and_wait();
      const auto start = std::chrono::steady_clock::now();
      for (int64_t pass = 0; pass < passes; ++pass) read();
      us[core] = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                     .count();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return static_cast<double>(passes * bytes) / std::ranges::max(us);
}

// One program each, on which much depends.
constexpr double Calibration::* kRates[] = {&Calibration::step_us,
                                            &Calibration::launch_us,
                                            &Calibration::bytes_per_us,
                                            &Calibration::copied_bytes_per_us,
                                            &Calibration::cached_bytes_per_us,
                                            &Calibration::transposed_bytes_per_us,
                                            &Calibration::swapped_bytes_per_us,
                                            &Calibration::arithmetic_per_us,
                                            &Calibration::half_arithmetic_per_us,
                                            &Calibration::elementwise_per_us,
                                            &Calibration::half_elementwise_per_us};
// The most bytes that are read again nearer to the rate of what every cache holds than to that of
// what none does. Measured, because a virtual machine says what its host has: 480 MiB where it
// keeps 64.
int64_t MeasuredCacheBytes(int cores) {
  constexpr int64_t kCached = int64_t{1} << 20, kUncached = int64_t{512} << 20;
  constexpr int kTries = 3;  // others may disturb some
  const auto rate = [&](int64_t bytes) {
    double best = 0;
    for (int i = 0; i < kTries; ++i) best = std::max(best, RereadRate(bytes, cores));
    return best;
  };
  const double half_way = std::sqrt(rate(kCached) * rate(kUncached));
  int64_t cached = kCached;
  for (int64_t bytes = 2 * kCached; bytes < kUncached; bytes *= 2) {
    if (rate(bytes) < half_way) break;
    cached = bytes;
  }
  return cached;
}

// Phases of work behind which devices wait, some 0.5, 2 and 8 ms where eight share two cores: as
// residual networks have them, and large transformers. Behind longer ones they wait no longer than
// the operating system lets one thread run.
struct Phases {
  int count = 1, num_pairs = 1;
};
constexpr Phases kPhases[] = {
    {.count = 48, .num_pairs = 1}, {.count = 24, .num_pairs = 4}, {.count = 12, .num_pairs = 16}};

class Profiler {
 public:
  Profiler(const LocalDevices& devices, const ProfileOptions& options)
      : devices_(devices),
        options_(options),
        grid_(GridFor(devices.client.kind(), options.num_devices)),
        uses_cores_(devices.client.kind() == Platform::kCpu) {}

  absl::StatusOr<Calibration> Run() {
    Calibration devices{.processor = ProcessorName(devices_.client),
                        .plugin = devices_.version(),
                        .num_devices = options_.num_devices,
                        .has_half_units = grid_.has_half_units};
    if (grid_.has_caches) {
      devices.cores = NumHardwareThreads();
      devices.cache_bytes = MeasuredCacheBytes(devices.cores);
    }
    total_ =
        static_cast<int>(grid_.dots.size() + grid_.half_dots.size() + grid_.cached_dots.size() +
                         2 * grid_.convolutions.size() + 2 * std::size(kReductions)) +
        grid_.num_rounds * kProgramsOfRates + kReferences;
    if (HasCollectives()) total_ += static_cast<int>(std::size(kPhases));
    // Collectives that divide are measured along one and along two dimensions.
    constexpr int kProgramsPerSize = 2 * static_cast<int>(std::size(kCollectives)) - 1;
    for (const int64_t group : GroupSizes()) {
      total_ += kProgramsPerSize * static_cast<int>(std::size(kCollectiveBytes));
      if (group < options_.num_devices)
        total_ += kProgramsPerSize * static_cast<int>(std::size(kStridedBytes));
    }
    most_repeated_ = total_ / 2;
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(Calibration out, MeasureAll(devices));
    again_until_ = std::chrono::steady_clock::now();
    again_until_ += (again_until_ - start) / 2;
    for (int pass = 0; pass < kMostPasses && !IsLate(); ++pass) {
      std::vector<CoreDistances> distances;
      for (const std::optional<Measurement>& one : measurements_) distances.push_back(one->cores);
      usual_ns_ = UsualCoreDistance(distances);
      const int num_elsewhere = NumElsewhere();
      if (num_elsewhere == 0) break;
      total_ = done_ + num_elsewhere;
      ASSIGN_OR_RETURN(out, MeasureAll(devices));
    }
    const auto num_measured = static_cast<double>(measurements_.size());
    for (const std::optional<Measurement>& one : measurements_)
      out.stolen_share += one->stolen_share / num_measured;
    out.core_round_trip_ns = usual_ns_;
    out.moved_share = NumElsewhere() / num_measured;
    return out;
  }

 private:
  static constexpr int kReferences = 2, kProgramsOfRates = 11;

  // What a program took, or two by turns, and where the cores were.
  struct Measurement {
    double us = 0;       // of the first
    double more_us = 0;  // that the second takes
    double stolen_share = 0;
    CoreDistances cores;
  };

  int NumElsewhere() const {
    return static_cast<int>(std::ranges::count_if(
        measurements_, [&](const auto& one) { return !one->cores.AreAt(usual_ns_); }));
  }

  // All programs, in the same order each time.
  absl::StatusOr<Calibration> MeasureAll(Calibration out) {
    next_ = 0;
    ASSIGN_OR_RETURN(const double at_first, ReferenceUs());
    RETURN_IF_ERROR(MeasureRates(out));
    RETURN_IF_ERROR(MeasureDots(out));
    for (const DotShape& shape : grid_.cached_dots) RETURN_IF_ERROR(MeasureCachedDot(shape, out));
    for (const ConvolutionShape& shape : grid_.convolutions) {
      RETURN_IF_ERROR(MeasureConvolution(shape, out));
    }
    for (const ReductionKernel kernel : kReductions) {
      RETURN_IF_ERROR(MeasureReduction(kernel, ElementType::kF32, out));
      RETURN_IF_ERROR(MeasureReduction(kernel, ElementType::kBF16, out));
    }
    for (const int64_t size : GroupSizes()) {
      DeviceGroups groups = {.size = size, .num_devices = options_.num_devices};
      for (const int64_t bytes : kCollectiveBytes) {
        RETURN_IF_ERROR(MeasureCollectives(groups, bytes, out));
      }
      groups.is_strided = true;
      for (const int64_t bytes : kStridedBytes) {
        if (size < options_.num_devices) RETURN_IF_ERROR(MeasureCollectives(groups, bytes, out));
      }
    }
    if (HasCollectives()) RETURN_IF_ERROR(MeasureWaits(out));
    ASSIGN_OR_RETURN(const double at_last, ReferenceUs());
    out.drift = at_last / at_first;
    return out;
  }

  // What was measured at this place before, where the cores were as usual; else measures it, again
  // only if they are.
  absl::StatusOr<Measurement> MeasureNext(
      std::string_view what, absl::FunctionRef<absl::StatusOr<Measurement>()> measure) {
    if (next_ == measurements_.size()) measurements_.emplace_back();
    std::optional<Measurement>& kept = measurements_[next_++];
    if (kept && (kept->cores.AreAt(usual_ns_) || IsLate() || !AwaitCores())) return *kept;
    if (options_.on_progress) options_.on_progress(what, done_, total_);
    ++done_;
    ASSIGN_OR_RETURN(const Measurement measured, measure());
    if (!kept || measured.cores.AreAt(usual_ns_)) kept = measured;
    return *kept;
  }

  // Is it too late to measure anything again?
  bool IsLate() const { return std::chrono::steady_clock::now() > again_until_; }

  // Until they are where they usually are, as long as may be waited. Are they?
  bool AwaitCores() {
    if (IsSameCoreDistance(CoreNs(), usual_ns_)) return true;
    if (left_to_wait_.count() <= 0) return false;
    if (options_.on_progress) {
      options_.on_progress("waits for the cores, which the host has moved", done_, total_);
    }
    return AwaitCoreDistance(usual_ns_, left_to_wait_);
  }

  // One device has none to wait for.
  bool HasCollectives() const { return options_.num_devices > 1; }

  std::vector<int64_t> GroupSizes() const {
    std::vector<int64_t> sizes;
    for (int64_t size = 2; size <= options_.num_devices; size *= 2) {
      if (options_.num_devices % size == 0) sizes.push_back(size);
    }
    return sizes;
  }

  // The wall time of a launch on all devices, a median as a step's time is: of the round that the
  // host of a virtual machine took least of.
  absl::StatusOr<double> LaunchUs(const std::string& what, absl::StatusOr<Module> module) {
    ASSIGN_OR_RETURN(const Measurement best,
                     MeasureNext(what, [&]() -> absl::StatusOr<Measurement> {
                       ASSIGN_OR_RETURN(Program program, Compile(std::move(module)));
                       return LeastStolen([&] { return Measure(program); });
                     }));
    return best.us;
  }

  // Measured again while the host of a virtual machine takes too much, a few times.
  absl::StatusOr<Measurement> LeastStolen(
      absl::FunctionRef<absl::StatusOr<Measurement>()> measure) {
    const auto rank = [&](const Measurement& measured) {
      return std::pair(!measured.cores.AreAt(usual_ns_), measured.stolen_share);
    };
    std::optional<Measurement> best;
    for (int i = 0; i < kMaxRounds && (!best || best->stolen_share > kMostStolen); ++i) {
      if (best && num_repeated_++ >= most_repeated_) break;
      if (usual_ns_ > 0) AwaitCores();
      const double before_ns = CoreNs();
      ASSIGN_OR_RETURN(Measurement measured, measure());
      measured.cores = {.before_ns = before_ns, .behind_ns = CoreNs()};
      if (!best || rank(measured) < rank(*best)) best = measured;
    }
    return *best;
  }

  // One device hardly has two cores move data.
  double CoreNs() const { return uses_cores_ && options_.num_devices > 1 ? CoreRoundTripNs() : 0; }

  struct Program {
    pjrt::Executable executable;
    std::vector<std::vector<pjrt::Buffer>> arguments;  // by device
  };

  // Medians of launches by turns, which meet the same changes of the machine's speed.
  absl::StatusOr<Measurement> Compare(Program& first, Program& second) const {
    const ProcessorTime before = ProcessorTimeNow();
    std::vector<double> us, more_us;
    for (int i = 0; i <= kTurns; ++i) {
      ASSIGN_OR_RETURN(const double first_us, LaunchOnce(first));
      ASSIGN_OR_RETURN(const double second_us, LaunchOnce(second));
      if (i == 0) continue;
      us.push_back(first_us);
      more_us.push_back(second_us - first_us);
    }
    for (std::vector<double>* times : {&us, &more_us}) {
      std::ranges::nth_element(*times, times->begin() + kTurns / 2);
    }
    return Measurement{
        .us = us[kTurns / 2], .more_us = more_us[kTurns / 2], .stolen_share = StolenSince(before)};
  }

  double StolenSince(const ProcessorTime& before) const {
    return uses_cores_ ? StolenShare(before, ProcessorTimeNow()) : 0;
  }

  absl::StatusOr<Program> Compile(absl::StatusOr<Module> module) {
    RETURN_IF_ERROR(module.status());
    ASSIGN_OR_RETURN(pjrt::Executable executable,
                     pjrt::Executable::Compile(
                         devices_.client,
                         ExportHlo(CompiledForms(*module, Departures::Of(devices_.client.kind()))),
                         {.num_replicas = options_.num_devices}));
    ASSIGN_OR_RETURN(std::vector<std::vector<pjrt::Buffer>> arguments, Arguments(executable));
    return Program{std::move(executable), std::move(arguments)};
  }

  static absl::StatusOr<double> LaunchOnce(Program& program) {
    std::vector<std::vector<pjrt::Buffer*>> pointers(program.arguments.size());
    for (size_t device = 0; device < program.arguments.size(); ++device) {
      for (pjrt::Buffer& buffer : program.arguments[device]) pointers[device].push_back(&buffer);
    }
    const auto start = std::chrono::steady_clock::now();
    ASSIGN_OR_RETURN(pjrt::Launch launch, program.executable.Execute(pointers));
    RETURN_IF_ERROR(launch.Await());
    const std::chrono::duration<double, std::micro> elapsed =
        std::chrono::steady_clock::now() - start;
    if (!program.executable.donated_parameters().empty()) {
      program.arguments = std::move(launch.results);
    }
    return elapsed.count();
  }

  // For kMeasuredUs.
  absl::StatusOr<Measurement> Measure(Program& program) const {
    const ProcessorTime before = ProcessorTimeNow();
    std::vector<double> times;
    double total_us = 0;
    const auto is_enough = [&] {
      const int launches = total_us < 4 * kMeasuredUs
                               ? options_.repetitions
                               : std::min(options_.repetitions, kFewestLaunches);
      return total_us >= kMeasuredUs && static_cast<int>(times.size()) >= launches;
    };
    for (int i = 0; !is_enough(); ++i) {
      ASSIGN_OR_RETURN(const double elapsed_us, LaunchOnce(program));
      total_us += elapsed_us;
      if (i > 0) times.push_back(elapsed_us);
    }
    std::ranges::sort(times);
    return Measurement{.us = times[times.size() / 2], .stolen_share = StolenSince(before)};
  }

  absl::StatusOr<std::vector<std::vector<pjrt::Buffer>>> Arguments(
      const pjrt::Executable& program) {
    std::vector<std::vector<pjrt::Buffer>> arguments(options_.num_devices);
    for (int i = 0; i < program.num_parameters(); ++i) {
      const Shape& shape = program.parameter_shape(i);
      const Literal values =
          grid_.draws_values ? DrawnLiteral(shape) : FilledLiteral(shape, 1.0 / 64);
      for (int device = 0; device < options_.num_devices; ++device) {
        ASSIGN_OR_RETURN(pjrt::Buffer buffer,
                         devices_.client.CopyFromHost(device, shape, *values.bytes));
        arguments[device].push_back(std::move(buffer));
      }
    }
    return arguments;
  }

  // Products and memory, some 20 ms.
  absl::StatusOr<double> ReferenceUs() {
    return LaunchUs("reference", DotProgram(DotForm::kNN, ElementType::kF32, 1, 256, 512, 512, 4));
  }

  // Time of one of `count` operations, the program's own overhead taken off.
  double PerOperation(double program_us, double count) const {
    return std::max((program_us - step_us_) / count, 0.01);
  }

  // Work per us, what its launch takes off; disturbed times may leave next to nothing.
  static double Rate(double work, double us, double launch_us) {
    return work / std::max(us - launch_us, 0.1 * us);
  }

  // Medians of rounds, so that no moment decides.
  absl::Status MeasureRates(Calibration& out) {
    std::vector<Calibration> rounds(grid_.num_rounds, out);
    for (Calibration& round : rounds) {
      RETURN_IF_ERROR(MeasureOverheads(round));
      RETURN_IF_ERROR(MeasureElementwise(round));
    }
    for (const auto rate : kRates) {
      const auto middle = rounds.begin() + grid_.num_rounds / 2;
      std::ranges::nth_element(rounds, middle, {}, rate);
      out.*rate = (*middle).*rate;
    }
    step_us_ = out.step_us;
    return absl::OkStatus();
  }

  absl::Status MeasureOverheads(Calibration& out) {
    ASSIGN_OR_RETURN(step_us_, LaunchUs("step overhead", LaunchProgram(1)));
    constexpr int kCount = 100;
    ASSIGN_OR_RETURN(const double launches, LaunchUs("launch overhead", LaunchProgram(kCount)));
    out.step_us = step_us_;
    out.launch_us = PerOperation(launches, 2 * kCount);  // the reduction and the subtraction
    return absl::OkStatus();
  }

  absl::Status MeasureElementwise(Calibration& out) {
    const auto streamed = static_cast<double>(grid_.streamed_elements);
    for (const bool is_in_place : {true, false}) {
      ASSIGN_OR_RETURN(
          const double stream,
          LaunchUs(is_in_place ? "memory, in place" : "memory",
                   StreamProgram(grid_.streamed_elements, grid_.num_streamed, is_in_place)));
      (is_in_place ? out.bytes_per_us : out.copied_bytes_per_us) =
          Rate(2.0 * 4 * streamed, PerOperation(stream, grid_.num_streamed), out.launch_us);
    }
    const int64_t elements = grid_.looped_elements;
    const int count = grid_.num_operations, num_loops = grid_.num_loops;
    const auto num_elements = static_cast<double>(elements);
    // Loops that matter fill the outer caches, which the first ones are much faster than.
    const int64_t cached_elements = std::max(elements, out.cache_bytes / out.cores / 2 / 4);
    ASSIGN_OR_RETURN(const double cached,
                     LaunchUs("caches", CachedStreamProgram(cached_elements, count)));
    out.cached_bytes_per_us =
        std::max(out.bytes_per_us, Rate(2.0 * 4 * static_cast<double>(cached_elements),
                                        PerOperation(cached, count), out.launch_us));
    const double weight = ElementWeight(Opcode::kExponential) + ElementWeight(Opcode::kMultiply);
    for (const ElementType type : {ElementType::kF32, ElementType::kBF16}) {
      const bool is_half = type == ElementType::kBF16;
      ASSIGN_OR_RETURN(const double arithmetic,
                       LaunchUs(is_half ? "arithmetic in bf16" : "arithmetic",
                                ArithmeticProgram(type, elements, count, num_loops)));
      (is_half ? out.half_arithmetic_per_us : out.arithmetic_per_us) =
          Rate(2.0 * count * num_elements, PerOperation(arithmetic, num_loops), out.launch_us);
      ASSIGN_OR_RETURN(const double exponentials,
                       LaunchUs(is_half ? "elementwise in bf16" : "elementwise",
                                ElementwiseProgram(Opcode::kExponential, type, elements,
                                                   grid_.num_exponentials, num_loops)));
      (is_half ? out.half_elementwise_per_us : out.elementwise_per_us) =
          Rate(weight * grid_.num_exponentials * num_elements,
               PerOperation(exponentials, num_loops), out.launch_us);
    }
    return MeasureTranspositions(out);
  }

  // Of many heads, as attention has them, and of a matrix.
  absl::Status MeasureTranspositions(Calibration& out) {
    const int64_t elements = grid_.transposed_elements, features = 32;
    const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(elements)));
    const int count = grid_.num_streamed;
    const double bytes = 2.0 * 4 * static_cast<double>(elements);
    ASSIGN_OR_RETURN(
        const double leading,
        LaunchUs("transpositions of leading dimensions",
                 TransposeProgram({16, elements / 16 / features, features}, {1, 0, 2}, count)));
    ASSIGN_OR_RETURN(
        const double matrices,
        LaunchUs("transpositions of matrices", TransposeProgram({side, side}, {1, 0}, count)));
    out.transposed_bytes_per_us = Rate(bytes, PerOperation(leading, count), out.launch_us);
    out.swapped_bytes_per_us = Rate(bytes, PerOperation(matrices, count), out.launch_us);
    return absl::OkStatus();
  }

  absl::Status MeasureDots(Calibration& out) {
    std::vector<DotShape> half_dots = grid_.half_dots;
    for (const DotShape& shape : grid_.dots) {
      RETURN_IF_ERROR(MeasureDot(shape, ElementType::kF32, out.dots));
      // Right behind it, so that both are of the same moment mostly.
      const auto same = std::ranges::find(half_dots, shape);
      if (same == half_dots.end()) continue;
      RETURN_IF_ERROR(MeasureDot(shape, ElementType::kBF16, out.half_dots));
      half_dots.erase(same);
    }
    for (const DotShape& shape : half_dots) {
      RETURN_IF_ERROR(MeasureDot(shape, ElementType::kBF16, out.half_dots));
    }
    return absl::OkStatus();
  }

  absl::Status MeasureDot(const DotShape& shape, ElementType type, std::vector<DotPoint>& out) {
    const auto [form, batch, m, n, k] = shape;
    const double flops = 2.0 * static_cast<double>(batch * m * n * k);
    const int64_t operand_bytes = Shape{type, {batch, k, n}}.num_bytes();
    const int64_t that_fit =
        std::clamp<int64_t>(grid_.dot_bytes / operand_bytes, 2, grid_.most_dots);
    const auto count = static_cast<int>(
        std::clamp<int64_t>(static_cast<int64_t>(grid_.dot_flops / flops),
                            std::min<int64_t>(grid_.fewest_dots, that_fit), that_fit));
    const std::string what = fmt::format("dot {} {}x{}x{}x{}, {}", ToString(form), batch, m, n, k,
                                         type == ElementType::kBF16 ? "bf16" : "f32");
    ASSIGN_OR_RETURN(const double program_us,
                     LaunchUs(what, DotProgram(form, type, batch, m, n, k, count)));
    out.push_back({.form = form,
                   .batch = batch,
                   .m = m,
                   .n = n,
                   .k = k,
                   .us = PerOperation(program_us, count)});
    return absl::OkStatus();
  }

  absl::Status MeasureCachedDot(const DotShape& shape, Calibration& out) {
    const auto [form, batch, m, n, k] = shape;
    constexpr int kCount = 32;
    const std::string what =
        fmt::format("dot {} {}x{}x{}x{}, cached", ToString(form), batch, m, n, k);
    ASSIGN_OR_RETURN(const double program_us,
                     LaunchUs(what, CachedDotProgram(form, batch, m, n, k, kCount)));
    out.cached_dots.push_back(
        {.form = form,
         .batch = batch,
         .m = m,
         .n = n,
         .k = k,
         .us = std::max(PerOperation(program_us, kCount) - out.launch_us, 0.01)});
    return absl::OkStatus();
  }

  absl::Status MeasureConvolution(const ConvolutionShape& shape, Calibration& out) {
    const auto add = [&](DotForm form, const ProductSizes& product, double us) {
      out.convolutions.push_back({.form = form,
                                  .batch = product.batch,
                                  .m = product.m,
                                  .n = product.n,
                                  .k = product.k,
                                  .us = us});
    };
    const std::string what =
        fmt::format("convolution of {} x {} x {}, {} to {} in {} groups", shape.images, shape.size,
                    shape.size, shape.inputs, shape.features, shape.groups);
    const int count = grid_.num_convolutions;
    ASSIGN_OR_RETURN(const double us, LaunchUs(what, ConvolutionProgram(shape, count)));
    add(DotForm::kNN, ProductOf(shape), PerOperation(us, count));
    ASSIGN_OR_RETURN(const double gradients_us,
                     LaunchUs("kernel gradient, " + what, KernelGradientProgram(shape, count)));
    add(DotForm::kTN, ProductOfKernelGradient(shape), PerOperation(gradients_us, count));
    return absl::OkStatus();
  }

  absl::Status MeasureReduction(ReductionKernel kernel, ElementType type, Calibration& out) {
    const int count = grid_.num_reductions;
    const bool is_half = type == ElementType::kBF16;
    const absl::StatusOr<Module> program = ReductionProgram(kernel, type, grid_.reductions, count);
    RETURN_IF_ERROR(program.status());
    const double work = WorkOf(*program, program->entry_computation()).elementwise;
    ASSIGN_OR_RETURN(const double us, LaunchUs(fmt::format("reduction of {}, {}", ToString(kernel),
                                                           is_half ? "bf16" : "f32"),
                                               program));
    out.reductions.push_back(
        {kernel, is_half, Rate(work / count, PerOperation(us, count), out.launch_us)});
    return absl::OkStatus();
  }

  // What a collective of all devices between other work costs beyond what it costs among
  // collectives.
  absl::Status MeasureWaits(Calibration& out) {
    const DeviceGroups all = {.size = options_.num_devices, .num_devices = options_.num_devices};
    const double collective_us =
        CalibratedCollectiveUs(out, ReshardKind::kAllReduce, options_.num_devices,
                               static_cast<double>(PhasesProgramBytes()));
    for (const Phases& phases : kPhases) {
      const auto compile = [&](const std::optional<DeviceGroups>& groups) {
        return Compile(PhasesProgram(groups, phases.count, phases.num_pairs));
      };
      ASSIGN_OR_RETURN(
          const Measurement compared,
          MeasureNext(fmt::format("{} phases of work, apart and together", phases.count),
                      [&]() -> absl::StatusOr<Measurement> {
                        ASSIGN_OR_RETURN(Program apart, compile(std::nullopt));
                        ASSIGN_OR_RETURN(Program together, compile(all));
                        return LeastStolen([&] { return Compare(apart, together); });
                      }));
      const double phase_us = PerOperation(compared.us, phases.count);
      const WaitPoint last = out.waits.empty() ? WaitPoint() : out.waits.back();
      if (phase_us <= last.phase_us) continue;
      out.waits.push_back(
          {.phase_us = phase_us,
           .us = std::max(last.us, compared.more_us / phases.count - collective_us)});
    }
    return absl::OkStatus();
  }

  absl::Status MeasureCollectives(const DeviceGroups& groups, int64_t bytes, Calibration& out) {
    for (const ReshardKind kind : kCollectives) {
      const auto add = [&](double us, bool is_inner) {
        out.collectives.push_back(
            {.kind = kind,
             .group_size = groups.size,
             .bytes = bytes,
             .us = us,
             .layout = {.is_strided = groups.is_strided, .is_inner = is_inner}});
      };
      ASSIGN_OR_RETURN(const double us, CollectiveUs(kind, bytes, groups, /*dim=*/0));
      add(us, /*is_inner=*/false);
      if (kind == ReshardKind::kAllReduce) continue;
      ASSIGN_OR_RETURN(const double inner_us, CollectiveUs(kind, bytes, groups, /*dim=*/1));
      add(std::max(inner_us, us), /*is_inner=*/true);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> CollectiveUs(ReshardKind kind, int64_t bytes, const DeviceGroups& groups,
                                      int64_t dim) {
    const int count = CollectiveCount(bytes, groups.num_devices);
    ASSIGN_OR_RETURN(const double program_us,
                     LaunchUs(fmt::format("{} of {} bytes by {}{}", ToString(kind), bytes,
                                          groups.size, groups.is_strided ? ", strided" : ""),
                              CollectiveProgram(kind, bytes, groups, dim, count)));
    return PerOperation(program_us, count);
  }

  const LocalDevices& devices_;
  const ProfileOptions& options_;
  const ProfileGrid grid_;
  double step_us_ = 0;
  const bool uses_cores_;                     // who else uses them is no matter to GPUs
  int num_repeated_ = 0, most_repeated_ = 0;  // rounds
  // In the order of the programs.
  std::vector<std::optional<Measurement>> measurements_;
  size_t next_ = 0;      // of these
  double usual_ns_ = 0;  // where the cores were mostly; 0: not known, at first
  std::chrono::duration<double> left_to_wait_ = kLongestWaits;
  std::chrono::steady_clock::time_point again_until_;  // behind the first time
  int done_ = 0;
  int total_ = 0;
};

// The user's folder of what was measured.
std::filesystem::path CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = cache && *cache ? std::filesystem::path(cache)
                                       : home && *home ? std::filesystem::path(home) / ".cache"
                                                       : std::filesystem::path(".cache");
  return folder / "minka";
}

// Waits until no other process profiles; the others wait until it is closed. Where there can be no
// such file nobody waits.
FileDescriptor AwaitTurn(const ProfileOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(CacheFolder(), error);
  FileDescriptor file(
      ::open((CacheFolder() / "profile.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (::flock(file.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (options.on_progress) options.on_progress("waits for another process that profiles", 0, 1);
    while (::flock(file.number(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  return file;
}

absl::Status Keep(const std::string& path, const Calibration& calibration) {
  std::error_code error;
  std::filesystem::create_directories(CacheFolder(), error);
  return WriteFile(path, calibration.ToJson());
}

// nullopt: there is none, or one of another version.
absl::StatusOr<std::optional<Calibration>> Load(const std::string& path) {
  const auto text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  auto calibration = Calibration::FromJson(*text);
  if (calibration.status().code() == absl::StatusCode::kFailedPrecondition) return std::nullopt;
  if (!calibration.ok()) {
    return InvalidArgument("{}: {}; `minka profile` measures anew", path,
                           Message(calibration.status()));
  }
  return *std::move(calibration);
}

}  // namespace

absl::StatusOr<Calibration> Profile(const LocalDevices& devices, const ProfileOptions& options) {
  if (options.num_devices < 1 || options.num_devices > devices.client.num_devices()) {
    return InvalidArgument("a profile needs a device or more and has {} of {}", options.num_devices,
                           devices.client.num_devices());
  }
  const ProcessorTime before = ProcessorTimeNow();
  ASSIGN_OR_RETURN(Calibration calibration, Profiler(devices, options).Run());
  // Who uses the cores is no matter to GPUs.
  if (devices.client.kind() == Platform::kCpu) {
    calibration.others_share = OthersShare(before, ProcessorTimeNow());
  }
  return calibration;
}

std::string CalibrationPath(const LocalDevices& devices, int num_devices) {
  const std::string key = fmt::format("{}|{}|{}|{}", ProcessorName(devices.client),
                                      NumHardwareThreads(), devices.version(), num_devices);
  return (CacheFolder() / fmt::format("profile-{}.json", HashText(StableHash(key)))).string();
}

absl::StatusOr<Calibration> ProfileAndKeep(const LocalDevices& devices,
                                           const ProfileOptions& options) {
  const FileDescriptor turn = AwaitTurn(options);
  ASSIGN_OR_RETURN(Calibration calibration, Profile(devices, options));
  RETURN_IF_ERROR(Keep(CalibrationPath(devices, options.num_devices), calibration));
  return calibration;
}

absl::StatusOr<Calibration> LoadOrProfile(const LocalDevices& devices,
                                          const ProfileOptions& options) {
  const std::string path = CalibrationPath(devices, options.num_devices);
  ASSIGN_OR_RETURN(std::optional<Calibration> kept, Load(path));
  if (kept) return *std::move(kept);
  const FileDescriptor turn = AwaitTurn(options);
  // Who had the turn may have measured the same.
  ASSIGN_OR_RETURN(kept, Load(path));
  if (kept) return *std::move(kept);
  ASSIGN_OR_RETURN(Calibration calibration, Profile(devices, options));
  Keep(path, calibration).IgnoreError();
  return calibration;
}

}  // namespace minka
