#include "minka/cost/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "minka/base/check.h"
#include "minka/base/json.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 3;  // 3: dots without XNNPACK

constexpr ReshardKind kCollectiveKinds[] = {ReshardKind::kAllReduce, ReshardKind::kReduceScatter,
                                            ReshardKind::kAllGather, ReshardKind::kAllToAll};

absl::StatusOr<ReshardKind> ParseKind(const std::string& name) {
  for (ReshardKind kind : kCollectiveKinds) {
    if (name == ToString(kind)) return kind;
  }
  return InvalidArgument("calibration: unknown collective \"{}\"", name);
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

// What the parts of DotModel are multiplied with.
std::array<double, 3> DotTerms(const DotPoint& dot) {
  const auto batch = static_cast<double>(dot.batch), m = static_cast<double>(dot.m);
  const auto n = static_cast<double>(dot.n), k = static_cast<double>(dot.k);
  return {1, batch * m * n * k, batch * (m * k + k * n + m * n)};
}

// Relative errors beyond this weigh as their first power, not their square.
constexpr double kOrdinaryNoise = 0.1;

// Weighted least squares of relative errors without negative parts, one part after the other.
std::array<double, 3> FitRelative(std::span<const DotPoint> dots,
                                  const std::vector<double>& weights) {
  constexpr int kSweeps = 500;
  std::array<double, 3> solution = {};
  std::array<std::array<double, 3>, 3> gram = {};
  std::array<double, 3> right = {};
  for (size_t j = 0; j < dots.size(); ++j) {
    std::array<double, 3> row = DotTerms(dots[j]);
    for (double& term : row) term /= dots[j].us;
    for (int a = 0; a < 3; ++a) {
      right[a] += weights[j] * row[a];
      for (int b = 0; b < 3; ++b) gram[a][b] += weights[j] * row[a] * row[b];
    }
  }
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int a = 0; a < 3; ++a) {
      double rest = right[a];
      for (int b = 0; b < 3; ++b) rest -= a == b ? 0 : gram[a][b] * solution[b];
      solution[a] = std::max(0.0, rest / gram[a][a]);
    }
  }
  return solution;
}

}  // namespace

double DotModel::Us(int64_t batch, int64_t m, int64_t n, int64_t k) const {
  const auto terms = DotTerms({.batch = batch, .m = m, .n = n, .k = k});
  return fixed_us * terms[0] + us_per_multiply_add * terms[1] + us_per_element * terms[2];
}

DotModel FitDots(std::span<const DotPoint> dots) {
  MINKA_CHECK(!dots.empty());
  constexpr int kReweightings = 20;
  std::vector<double> weights(dots.size(), 1);
  std::array<double, 3> solution = {};
  for (int i = 0; i < kReweightings; ++i) {
    solution = FitRelative(dots, weights);
    for (size_t j = 0; j < dots.size(); ++j) {
      const auto terms = DotTerms(dots[j]);
      const double fitted = std::inner_product(terms.begin(), terms.end(), solution.begin(), 0.0);
      weights[j] = std::min(1.0, kOrdinaryNoise / std::abs(fitted / dots[j].us - 1));
    }
  }
  return {solution[0], solution[1], solution[2]};
}

double CalibratedCollectiveUs(const Calibration& calibration, ReshardKind kind, int64_t group_size,
                              double bytes) {
  std::map<int64_t, std::vector<std::pair<double, double>>> by_group_size;
  for (const CollectivePoint& point : calibration.collectives) {
    if (point.kind == kind) {
      by_group_size[point.group_size].emplace_back(static_cast<double>(point.bytes), point.us);
    }
  }
  std::vector<std::pair<double, double>> by_size;
  for (auto& [size, points] : by_group_size) {
    std::ranges::sort(points);
    by_size.emplace_back(static_cast<double>(size), Interpolate(points, bytes));
  }
  return by_size.empty() ? 0 : Interpolate(by_size, static_cast<double>(group_size));
}

std::string Calibration::ToJson() const {
  Json json = {{"schema_version", kSchemaVersion},
               {"processor", processor},
               {"cores", cores},
               {"plugin", plugin},
               {"num_devices", num_devices},
               {"launch_us", launch_us},
               {"step_us", step_us},
               {"elementwise_per_us", elementwise_per_us},
               {"bytes_per_us", bytes_per_us},
               {"synchronise_us", synchronise_us},
               {"dots", Json::array()},
               {"collectives", Json::array()}};
  for (const DotPoint& dot : dots) {
    json["dots"].push_back(
        {{"batch", dot.batch}, {"m", dot.m}, {"n", dot.n}, {"k", dot.k}, {"us", dot.us}});
  }
  for (const CollectivePoint& point : collectives) {
    json["collectives"].push_back({{"kind", std::string(ToString(point.kind))},
                                   {"group_size", point.group_size},
                                   {"bytes", point.bytes},
                                   {"us", point.us}});
  }
  return json.dump(1) + "\n";
}

absl::StatusOr<Calibration> Calibration::FromJson(std::string_view text) {
  const absl::StatusOr<Json> parsed = ParseJson(text);
  if (!parsed.ok()) return WithContext(parsed.status(), "calibration");
  const Json& json = *parsed;
  try {
    if (json.at("schema_version") != kSchemaVersion)
      return InvalidArgument("calibration: schema_version is not {}; profile again",
                             kSchemaVersion);
    Calibration out{.processor = json.at("processor"),
                    .cores = json.at("cores"),
                    .plugin = json.at("plugin"),
                    .num_devices = json.at("num_devices"),
                    .launch_us = json.at("launch_us"),
                    .step_us = json.at("step_us"),
                    .elementwise_per_us = json.at("elementwise_per_us"),
                    .bytes_per_us = json.at("bytes_per_us"),
                    .synchronise_us = json.at("synchronise_us")};
    for (const Json& dot : json.at("dots")) {
      out.dots.push_back({dot.at("batch"), dot.at("m"), dot.at("n"), dot.at("k"), dot.at("us")});
    }
    for (const Json& point : json.at("collectives")) {
      ASSIGN_OR_RETURN(const ReshardKind kind, ParseKind(point.at("kind")));
      out.collectives.push_back({kind, point.at("group_size"), point.at("bytes"), point.at("us")});
    }
    const bool positive =
        out.num_devices > 0 && out.elementwise_per_us > 0 && out.bytes_per_us > 0 &&
        std::ranges::all_of(out.dots, [](const DotPoint& dot) {
          return dot.us > 0 && dot.batch > 0 && dot.m > 0 && dot.n > 0 && dot.k > 0;
        });
    if (!positive)
      return InvalidArgument("calibration: rates, sizes and times must be positive; profile again");
    return out;
  } catch (const Json::exception& error) {
    return InvalidArgument("calibration: {}", error.what());
  }
}

}  // namespace minka
