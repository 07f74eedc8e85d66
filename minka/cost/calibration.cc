#include "minka/cost/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "minka/base/check.h"
#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace

double CalibratedDotUs(const Calibration& calibration, int64_t batch, int64_t m, int64_t n,
                       int64_t k) {
  MINKA_CHECK(!calibration.dots.empty());
  const auto log_distance = [](int64_t a, int64_t b) {
    return std::log2(static_cast<double>(a) / static_cast<double>(b));
  };
  double weights = 0, rate = 0;
  for (const DotPoint& point : calibration.dots) {
    const double db = log_distance(batch, point.batch), dm = log_distance(m, point.m);
    const double dn = log_distance(n, point.n), dk = log_distance(k, point.k);
    const double distance = 0.25 * db * db + dm * dm + dn * dn + dk * dk;
    const double weight = 1 / (0.01 + distance * distance);
    weights += weight;
    rate += weight * static_cast<double>(point.batch * point.m * point.n * point.k) / point.us;
  }
  return static_cast<double>(batch * m * n * k) / (rate / weights);
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
  Json json = {{"schema_version", 1},
               {"processor", processor},
               {"cores", cores},
               {"plugin", plugin},
               {"num_devices", num_devices},
               {"launch_us", launch_us},
               {"step_us", step_us},
               {"elementwise_per_us", elementwise_per_us},
               {"bytes_per_us", bytes_per_us},
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
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return InvalidArgument("calibration: not JSON");
  try {
    if (json.at("schema_version") != 1)
      return InvalidArgument("calibration: schema_version is not 1; profile again");
    Calibration out{.processor = json.at("processor"),
                    .cores = json.at("cores"),
                    .plugin = json.at("plugin"),
                    .num_devices = json.at("num_devices"),
                    .launch_us = json.at("launch_us"),
                    .step_us = json.at("step_us"),
                    .elementwise_per_us = json.at("elementwise_per_us"),
                    .bytes_per_us = json.at("bytes_per_us")};
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
