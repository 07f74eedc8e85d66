#include "minka/cost/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "minka/base/check.h"
#include "minka/base/json.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// 10: exponentials as loops have them, one after the other; transpositions. 12: waits. 13: medians.
// 14: the outer caches. 15: copies. 16: maxima that hand on what is not a number.
// 17: longer programs, and where the cores were.
constexpr int kSchemaVersion = 18;

constexpr ReshardKind kCollectiveKinds[] = {ReshardKind::kAllReduce, ReshardKind::kReduceScatter,
                                            ReshardKind::kAllGather, ReshardKind::kAllToAll};

absl::StatusOr<ReshardKind> ParseKind(const std::string& name) {
  for (ReshardKind kind : kCollectiveKinds) {
    if (name == ToString(kind)) return kind;
  }
  return InvalidArgument("calibration: unknown collective \"{}\"", name);
}

constexpr ReductionKernel kReductionKernels[] = {
    ReductionKernel::kRows, ReductionKernel::kColumns, ReductionKernel::kMaximumOfRows,
    ReductionKernel::kWindow, ReductionKernel::kWindowGradient};

absl::StatusOr<ReductionKernel> ParseReductionKernel(const std::string& name) {
  for (const ReductionKernel kernel : kReductionKernels) {
    if (name == ToString(kernel)) return kernel;
  }
  return InvalidArgument("calibration: unknown reduction \"{}\"", name);
}

absl::StatusOr<DotForm> ParseDotForm(const std::string& name) {
  for (const DotForm form : kDotForms) {
    if (name == ToString(form)) return form;
  }
  return InvalidArgument("calibration: unknown form of a dot \"{}\"", name);
}

// No device computes, copies or waits beyond this, in us or per us.
constexpr double kMost = 1e12;

// Reads fields and remembers the first that is out of range, by its path.
class FieldReader {
 public:
  FieldReader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  // More than zero, or at least `least`.
  double Positive(const char* name) { return Checked(name, /*may_be_zero=*/false); }
  double NotNegative(const char* name) { return Checked(name, /*may_be_zero=*/true); }
  int64_t Size(const char* name, int64_t least = 1) {
    const Json& value = json_.at(name);
    const bool fits = value.is_number_integer() && value >= least && value <= int64_t{1} << 40;
    if (!fits) Refuse(name, fmt::format("a whole number from {}", least));
    return fits ? value.get<int64_t>() : least;
  }
  const absl::Status& status() const { return status_; }

 private:
  double Checked(const char* name, bool may_be_zero) {
    const Json& value = json_.at(name);
    const bool fits = value.is_number() && value <= kMost && (may_be_zero ? value >= 0 : value > 0);
    if (!fits) Refuse(name, may_be_zero ? "0 or more" : "above 0");
    return fits ? value.get<double>() : 1;
  }
  void Refuse(const char* name, std::string_view wanted) {
    if (!status_.ok()) return;
    status_ = InvalidArgument("calibration: {}{} is {}, not {}", path_, name, json_.at(name).dump(),
                              wanted);
  }

  const Json& json_;
  const std::string path_;
  absl::Status status_;
};

absl::StatusOr<std::vector<DotPoint>> ReadDots(const Json& json, const char* name) {
  std::vector<DotPoint> dots;
  for (const Json& dot : json.at(name)) {
    FieldReader read(dot, fmt::format("{}[{}].", name, dots.size()));
    ASSIGN_OR_RETURN(const DotForm form, ParseDotForm(dot.at("form").get<std::string>()));
    dots.push_back({.form = form,
                    .batch = read.Size("batch"),
                    .m = read.Size("m"),
                    .n = read.Size("n"),
                    .k = read.Size("k"),
                    .us = read.Positive("us")});
    RETURN_IF_ERROR(read.status());
  }
  return dots;
}

Json DotsToJson(const std::vector<DotPoint>& dots) {
  Json json = Json::array();
  for (const DotPoint& dot : dots) {
    json.push_back({{"form", std::string(ToString(dot.form))},
                    {"batch", dot.batch},
                    {"m", dot.m},
                    {"n", dot.n},
                    {"k", dot.k},
                    {"us", dot.us}});
  }
  return json;
}

// y at x through the points, ascending in x, linear between and beyond them, never below zero.
double Interpolate(const std::vector<std::pair<double, double>>& points, double x) {
  if (points.size() == 1) return points[0].second;
  size_t right = 1;
  while (right + 1 < points.size() && points[right].first < x) ++right;
  const auto& [x0, y0] = points[right - 1];
  const auto& [x1, y1] = points[right];
  return std::max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0));
}

using DotTerms = std::array<double, DotModel::kNumTerms>;

// What rows that share places in a core's first cache cost an operand that is packed from them, as
// parts of what it is where all of them share one: with every second row, and with every fourth
// one. Beside up to so many rows of the other operand it costs more with each; what is transposed
// costs the same beside any.
struct PlacesShared {
  double of_two = 0, of_four = 0;
  int64_t fewest_rows = 1, most_rows = 1;
};
// Measured as pairs of rows that differ by 16 elements (docs/design/0012-prices.md).
constexpr PlacesShared kAsStored = {
    .of_two = 0.5, .of_four = 0, .fewest_rows = 1, .most_rows = 400};
constexpr PlacesShared kTransposed = {
    .of_two = 0.7, .of_four = 0.25, .fewest_rows = 128, .most_rows = 128};

// Multiply-adds with an operand of so many rows of f32 that share places, in a cache of 4 KiB a
// way, which x86 processors have.
double WorkOnSharedPlaces(int64_t row, int64_t num_rows, int64_t num_others,
                          const PlacesShared& places) {
  constexpr int64_t kBytesOfWay = 4096;
  const auto bytes = static_cast<int64_t>(row * sizeof(float));
  const double part = bytes % kBytesOfWay == 0         ? 1
                      : bytes % (kBytesOfWay / 2) == 0 ? places.of_two
                      : bytes % (kBytesOfWay / 4) == 0 ? places.of_four
                                                       : 0;
  const int64_t others = std::clamp(num_others, places.fewest_rows, places.most_rows);
  return part * static_cast<double>(row * num_rows * others);
}

double WorkOnSharedPlaces(const DotPoint& dot) {
  switch (dot.form) {
    case DotForm::kNN:
      return WorkOnSharedPlaces(dot.n, dot.k, dot.m, kAsStored);
    case DotForm::kNT:
      return WorkOnSharedPlaces(dot.k, dot.n, dot.m, kTransposed);
    case DotForm::kTN:
      return WorkOnSharedPlaces(dot.n, dot.k, dot.m, kAsStored) +
             WorkOnSharedPlaces(dot.m, dot.k, dot.n, kTransposed);
  }
  MINKA_CHECK(false);
}

// Multiply-adds that the last columns of a result cost beyond those of its other columns, in
// columns: where registers hold 16 numbers, products are made 48 columns at a time, in three
// registers, and what is left in one, which is slower by far, in two, or in three
// (docs/design/0012-prices.md).
double WorkOnLastColumns(const DotPoint& dot) {
  constexpr int64_t kColumns = 48, kInOne = 16, kInTwo = 32;
  constexpr double kMoreInOne = 1, kMoreInTwo = 0.4;
  const int64_t rest = dot.n % kColumns;
  const double more = rest == 0 ? 0 : rest <= kInOne ? kMoreInOne : rest <= kInTwo ? kMoreInTwo : 0;
  return more * static_cast<double>(dot.m * dot.k);
}

// What the parts of DotModel are multiplied with.
DotTerms TermsOf(const DotPoint& dot) {
  const auto batch = static_cast<double>(dot.batch), m = static_cast<double>(dot.m);
  const auto n = static_cast<double>(dot.n), k = static_cast<double>(dot.k);
  return {1,
          batch,
          batch * m * n * k,
          batch * m * k,
          batch * k * n,
          batch * m * n,
          batch * WorkOnLastColumns(dot),
          batch * WorkOnSharedPlaces(dot)};
}

// Relative errors beyond this weigh as their first power, not their square.
constexpr double kOrdinaryNoise = 0.1;

// Weighted least squares of relative errors without negative parts, one part after the other.
DotTerms FitRelative(std::span<const DotPoint> dots, const std::vector<double>& weights,
                     bool has_caches) {
  constexpr int kSweeps = 2000;
  const int num_terms = DotModel::kNumTerms - (has_caches ? 0 : 2);
  DotTerms solution = {}, right = {};
  std::array<DotTerms, DotModel::kNumTerms> gram = {};
  for (size_t j = 0; j < dots.size(); ++j) {
    DotTerms row = TermsOf(dots[j]);
    for (double& term : row) term /= dots[j].us;
    for (int a = 0; a < num_terms; ++a) {
      right[a] += weights[j] * row[a];
      for (int b = 0; b < num_terms; ++b) gram[a][b] += weights[j] * row[a] * row[b];
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int a = 0; a < num_terms; ++a) {
      if (gram[a][a] == 0) continue;  // no dot has anything of it
      double rest = right[a];
      for (int b = 0; b < num_terms; ++b) rest -= a == b ? 0 : gram[a][b] * solution[b];
      solution[a] = std::max(0.0, rest / gram[a][a]);
    }
  }
  return solution;
}

}  // namespace

std::string_view ToString(ReductionKernel kernel) {
  switch (kernel) {
    case ReductionKernel::kNone:
      return "none";
    case ReductionKernel::kRows:
      return "rows";
    case ReductionKernel::kColumns:
      return "columns";
    case ReductionKernel::kMaximumOfRows:
      return "maximum-of-rows";
    case ReductionKernel::kWindow:
      return "window";
    case ReductionKernel::kWindowGradient:
      return "window-gradient";
  }
  MINKA_CHECK(false);
}

std::string_view ToString(DotForm form) {
  switch (form) {
    case DotForm::kNN:
      return "nn";
    case DotForm::kNT:
      return "nt";
    case DotForm::kTN:
      return "tn";
  }
  MINKA_CHECK(false);
}

double DotModel::Us(DotForm form, int64_t batch, int64_t m, int64_t n, int64_t k) const {
  const DotTerms terms = TermsOf({.form = form, .batch = batch, .m = m, .n = n, .k = k});
  return std::inner_product(terms.begin(), terms.end(), us.begin(), 0.0);
}

DotModel FitDots(std::span<const DotPoint> dots, bool has_caches) {
  MINKA_CHECK(!dots.empty());
  constexpr int kReweightings = 20;
  // Long ones count more: they are what steps spend their time on.
  std::vector<double> importance;
  for (const DotPoint& dot : dots) importance.push_back(std::pow(dot.us, 0.25));
  std::vector<double> weights = importance;
  DotModel model;
  for (int i = 0; i < kReweightings; ++i) {
    model.us = FitRelative(dots, weights, has_caches);
    for (size_t j = 0; j < dots.size(); ++j) {
      const double fitted = model.Us(dots[j].form, dots[j].batch, dots[j].m, dots[j].n, dots[j].k);
      weights[j] =
          importance[j] * std::min(1.0, kOrdinaryNoise / std::abs(fitted / dots[j].us - 1));
    }
  }
  return model;
}

DotModel FitDots(std::span<const DotPoint> dots, bool has_caches, DotForm form) {
  std::vector<DotPoint> of_form;
  std::ranges::copy_if(dots, std::back_inserter(of_form),
                       [&](const DotPoint& dot) { return dot.form == form; });
  return FitDots(of_form.empty() ? dots : std::span<const DotPoint>(of_form), has_caches);
}

double HalfDotCosts::Us(double elements, double cache_bytes) const {
  return elements * (elements * sizeof(float) <= cache_bytes ? cached_us : uncached_us);
}

HalfDotCosts HalfDotCostsOf(const Calibration& calibration) {
  const double cache_bytes = static_cast<double>(calibration.cache_bytes) / calibration.cores;
  std::vector<double> cached, uncached;
  for (const DotPoint& half : calibration.half_dots) {
    const auto whole = std::ranges::find_if(calibration.dots, [&](const DotPoint& dot) {
      return std::tie(dot.form, dot.batch, dot.m, dot.n, dot.k) ==
             std::tie(half.form, half.batch, half.m, half.n, half.k);
    });
    if (whole == calibration.dots.end()) continue;
    const auto elements =
        static_cast<double>(half.batch * (half.m * half.k + half.k * half.n + half.m * half.n));
    (elements * sizeof(float) <= cache_bytes ? cached : uncached)
        .push_back((half.us - whole->us) / elements);
  }
  const auto median = [](std::vector<double>& values, double otherwise) {
    if (values.empty()) return otherwise;
    const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return std::max(0.0, *middle);
  };
  HalfDotCosts costs{.cached_us = median(cached, 0)};
  costs.uncached_us = std::max(costs.cached_us, median(uncached, 0));
  return costs;
}

double CalibratedCollectiveUs(const Calibration& calibration, ReshardKind kind, int64_t group_size,
                              double bytes, CollectiveLayout layout) {
  const auto is_measured = [&] {
    return std::ranges::any_of(calibration.collectives, [&](const CollectivePoint& point) {
      return point.kind == kind && point.layout == layout &&
             (point.group_size == group_size || !layout.is_strided);
    });
  };
  if (!is_measured()) layout.is_strided = false;
  if (!is_measured()) layout.is_inner = false;
  std::map<int64_t, std::vector<std::pair<double, double>>> by_group_size;
  for (const CollectivePoint& point : calibration.collectives) {
    if (point.kind != kind || point.layout != layout) continue;
    by_group_size[point.group_size].emplace_back(static_cast<double>(point.bytes), point.us);
  }
  std::vector<std::pair<double, double>> by_size;
  for (auto& [size, points] : by_group_size) {
    std::ranges::sort(points);
    by_size.emplace_back(static_cast<double>(size), Interpolate(points, bytes));
  }
  return by_size.empty() ? 0 : Interpolate(by_size, static_cast<double>(group_size));
}

double CalibratedWaitUs(const Calibration& calibration, double phase_us) {
  const std::vector<WaitPoint>& waits = calibration.waits;
  if (waits.empty()) return 0;
  const auto above = std::ranges::upper_bound(waits, phase_us, {}, &WaitPoint::phase_us);
  if (above == waits.begin()) return waits.front().us;
  if (above == waits.end()) return waits.back().us;
  const WaitPoint& below = *std::prev(above);
  const double part =
      std::log(phase_us / below.phase_us) / std::log(above->phase_us / below.phase_us);
  return std::lerp(below.us, above->us, part);
}

std::string DisturbanceNote(const Calibration& calibration) {
  constexpr double kMostDrift = 1.25, kMostOthers = 0.2, kMostStolen = 0.1, kMostMoved = 0.1;
  if (calibration.others_share > kMostOthers) {
    return fmt::format(
        "other processes took {:.0f} % of the time in which the cores were busy during the "
        "profile, and predictions will be too long; `minka profile` measures anew",
        100 * calibration.others_share);
  }
  if (calibration.stolen_share > kMostStolen) {
    return fmt::format(
        "the host of this virtual machine gave {:.0f} % of its cores' time to others during the "
        "profile, and predictions will be too long; `minka profile` measures anew",
        100 * calibration.stolen_share);
  }
  if (calibration.moved_share > kMostMoved) {
    return fmt::format(
        "in {:.0f} % of the profile the cores did not answer each other in about {:.0f} ns, as "
        "where the host of a virtual machine moves them: memory and collectives take other times "
        "then; `minka profile` measures anew",
        100 * calibration.moved_share, calibration.core_round_trip_ns);
  }
  const double drift = calibration.drift;
  if (drift < kMostDrift && drift > 1 / kMostDrift) return "";
  return fmt::format(
      "the same program took {:.2f} times as long at the end of the profile as at its beginning: "
      "others used the machine, and predictions will be off; `minka profile` measures anew",
      drift);
}

std::string Calibration::ToJson() const {
  Json json = {{"schema_version", kSchemaVersion},
               {"processor", processor},
               {"cores", cores},
               {"plugin", plugin},
               {"num_devices", num_devices},
               {"launch_us", launch_us},
               {"step_us", step_us},
               {"arithmetic_per_us", arithmetic_per_us},
               {"half_arithmetic_per_us", half_arithmetic_per_us},
               {"elementwise_per_us", elementwise_per_us},
               {"half_elementwise_per_us", half_elementwise_per_us},
               {"bytes_per_us", bytes_per_us},
               {"copied_bytes_per_us", copied_bytes_per_us},
               {"cached_bytes_per_us", cached_bytes_per_us},
               {"transposed_bytes_per_us", transposed_bytes_per_us},
               {"swapped_bytes_per_us", swapped_bytes_per_us},
               {"cache_bytes", cache_bytes},
               {"drift", drift},
               {"others_share", others_share},
               {"stolen_share", stolen_share},
               {"core_round_trip_ns", core_round_trip_ns},
               {"moved_share", moved_share},
               {"has_half_units", has_half_units},
               {"dots", DotsToJson(dots)},
               {"cached_dots", DotsToJson(cached_dots)},
               {"half_dots", DotsToJson(half_dots)},
               {"convolutions", DotsToJson(convolutions)},
               {"reductions", Json::array()},
               {"collectives", Json::array()},
               {"waits", Json::array()}};
  for (const ReductionRate& rate : reductions) {
    json["reductions"].push_back({{"kernel", std::string(ToString(rate.kernel))},
                                  {"half", rate.is_half},
                                  {"elementwise_per_us", rate.elementwise_per_us}});
  }
  for (const CollectivePoint& point : collectives) {
    json["collectives"].push_back({{"kind", std::string(ToString(point.kind))},
                                   {"group_size", point.group_size},
                                   {"strided", point.layout.is_strided},
                                   {"inner", point.layout.is_inner},
                                   {"bytes", point.bytes},
                                   {"us", point.us}});
  }
  for (const WaitPoint& point : waits) {
    json["waits"].push_back({{"phase_us", point.phase_us}, {"us", point.us}});
  }
  return json.dump(1) + "\n";
}

absl::StatusOr<Calibration> Calibration::FromJson(std::string_view text) {
  const absl::StatusOr<Json> parsed = ParseJson(text);
  if (!parsed.ok()) return WithContext(parsed.status(), "calibration");
  const Json& json = *parsed;
  try {
    if (json.at("schema_version") != kSchemaVersion) {
      return FailedPrecondition("calibration: schema_version is {}, not {}; profile again",
                                json.at("schema_version").dump(), kSchemaVersion);
    }
    FieldReader read(json, "");
    Calibration out{.processor = json.at("processor"),
                    .cores = static_cast<int>(read.Size("cores")),
                    .plugin = json.at("plugin"),
                    .num_devices = static_cast<int>(read.Size("num_devices")),
                    .launch_us = read.NotNegative("launch_us"),
                    .step_us = read.NotNegative("step_us"),
                    .arithmetic_per_us = read.Positive("arithmetic_per_us"),
                    .half_arithmetic_per_us = read.Positive("half_arithmetic_per_us"),
                    .elementwise_per_us = read.Positive("elementwise_per_us"),
                    .half_elementwise_per_us = read.Positive("half_elementwise_per_us"),
                    .bytes_per_us = read.Positive("bytes_per_us"),
                    .copied_bytes_per_us = read.Positive("copied_bytes_per_us"),
                    .cached_bytes_per_us = read.Positive("cached_bytes_per_us"),
                    .transposed_bytes_per_us = read.Positive("transposed_bytes_per_us"),
                    .swapped_bytes_per_us = read.Positive("swapped_bytes_per_us"),
                    .cache_bytes = read.Size("cache_bytes", /*least=*/0),
                    .drift = read.Positive("drift"),
                    .others_share = read.NotNegative("others_share"),
                    .stolen_share = read.NotNegative("stolen_share"),
                    .core_round_trip_ns = read.NotNegative("core_round_trip_ns"),
                    .moved_share = read.NotNegative("moved_share"),
                    .has_half_units = json.value("has_half_units", false)};
    RETURN_IF_ERROR(read.status());
    ASSIGN_OR_RETURN(out.dots, ReadDots(json, "dots"));
    ASSIGN_OR_RETURN(out.cached_dots, ReadDots(json, "cached_dots"));
    ASSIGN_OR_RETURN(out.half_dots, ReadDots(json, "half_dots"));
    ASSIGN_OR_RETURN(out.convolutions, ReadDots(json, "convolutions"));
    for (const Json& rate : json.at("reductions")) {
      FieldReader field(rate, fmt::format("reductions[{}].", out.reductions.size()));
      ASSIGN_OR_RETURN(const ReductionKernel kernel, ParseReductionKernel(rate.at("kernel")));
      out.reductions.push_back({kernel, rate.at("half"), field.Positive("elementwise_per_us")});
      RETURN_IF_ERROR(field.status());
    }
    for (const Json& point : json.at("collectives")) {
      FieldReader field(point, fmt::format("collectives[{}].", out.collectives.size()));
      ASSIGN_OR_RETURN(const ReshardKind kind, ParseKind(point.at("kind")));
      out.collectives.push_back(
          {.kind = kind,
           .group_size = field.Size("group_size", /*least=*/2),
           .bytes = field.Size("bytes"),
           .us = field.Positive("us"),
           .layout = {.is_strided = point.at("strided"), .is_inner = point.at("inner")}});
      RETURN_IF_ERROR(field.status());
    }
    WaitPoint last;
    for (const Json& point : json.at("waits")) {
      FieldReader field(point, fmt::format("waits[{}].", out.waits.size()));
      const WaitPoint wait = {.phase_us = field.Positive("phase_us"),
                              .us = field.NotNegative("us")};
      RETURN_IF_ERROR(field.status());
      if (wait.phase_us <= last.phase_us || wait.us < last.us) {
        return InvalidArgument("calibration: waits[{}] is not above the one before",
                               out.waits.size());
      }
      out.waits.push_back(last = wait);
    }
    return out;
  } catch (const Json::exception& error) {
    return InvalidArgument("calibration: {}", error.what());
  }
}

}  // namespace minka
