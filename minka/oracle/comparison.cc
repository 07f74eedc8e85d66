#include "minka/oracle/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fmt/format.h"

namespace minka {
namespace {

// What one run may be off by, of what the draws show.
constexpr double kNoiseFactor = 4;

// Complex arrays as twice as many real elements.
Literal AsReals(const Literal& literal) {
  if (!IsComplex(literal.shape.type)) return literal;
  Literal real = literal;
  real.shape.type = literal.shape.type == ElementType::kC64 ? ElementType::kF32 : ElementType::kF64;
  real.shape.dims.push_back(2);
  return real;
}

std::vector<double> Elements(const Literal& literal) { return ElementsAsDoubles(AsReals(literal)); }

// The largest difference; infinite where only one of two elements is a number.
double LargestDifference(const std::vector<double>& x, const std::vector<double>& y) {
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (!std::isfinite(x[i]) && !std::isfinite(y[i]))) continue;
    const double difference = std::abs(x[i] - y[i]);
    largest = std::max(
        largest, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
  }
  return largest;
}

// The elements of one result in all runs. `before` is zero where it is not state.
struct ResultElements {
  std::vector<double> minka, single, reference, before;
  std::vector<std::vector<double>> nudged, nudged_before;
};

std::vector<double> ElementsOr0(const Literal& literal, size_t count) {
  return literal.bytes ? Elements(literal) : std::vector<double>(count);
}

ResultElements ElementsOf(const ResultRuns& runs) {
  ResultElements x{.minka = Elements(runs.minka),
                   .single = Elements(runs.single),
                   .reference = Elements(runs.reference)};
  x.before = ElementsOr0(runs.before, x.minka.size());
  for (size_t draw = 0; draw < runs.nudged.size(); ++draw) {
    x.nudged.push_back(Elements(runs.nudged[draw]));
    x.nudged_before.push_back(ElementsOr0(
        draw < runs.nudged_before.size() ? runs.nudged_before[draw] : Literal{}, x.minka.size()));
  }
  return x;
}

// Are both numbers, both not, or both the same infinity?
bool SameKind(double x, double y) {
  if (std::isfinite(x)) return std::isfinite(y);
  return std::isnan(x) ? std::isnan(y) : x == y;
}

// Where sums overflow on one device, their order decides between an infinity and no number.
bool SomeRunHas(const ResultElements& x, size_t i) {
  const double minka = x.minka[i];
  const auto agrees = [&](double value) {
    return SameKind(minka, value) || (std::isnan(minka) && !std::isfinite(value));
  };
  return agrees(x.single[i]) || agrees(x.reference[i]) ||
         std::ranges::any_of(x.nudged, [&](const auto& nudged) { return agrees(nudged[i]); });
}

void CompareNotFinite(const ResultElements& x, OutputComparison& out) {
  int64_t num_wrong = 0;
  for (size_t i = 0; i < x.minka.size(); ++i) {
    if (!std::isfinite(x.single[i])) ++out.num_not_finite;
    if (SomeRunHas(x, i)) continue;
    if (num_wrong++ == 0) {
      out.detail = fmt::format("element {} is {} and {} on one device", i, x.minka[i], x.single[i]);
    }
  }
  if (num_wrong == 0) return;
  out.fault = Fault::kNotFinite;
  out.detail = fmt::format("{} of {} elements; {}", num_wrong, x.minka.size(), out.detail);
}

// Sums of squares until Finished.
struct Sums {
  explicit Sums(size_t num_draws) : nudged(num_draws), num_changed(1 + num_draws) {}

  Norms norms;
  std::vector<double> nudged;
  int64_t num_kept = 0;              // elements of minka's run that are as before
  std::vector<int64_t> num_changed;  // by run of one device

  void Add(const ResultElements& x, size_t i) {
    ++norms.num_elements;
    num_kept += x.minka[i] == x.before[i] ? 1 : 0;
    num_changed[0] += x.single[i] != x.before[i] ? 1 : 0;
    if (!std::isfinite(x.minka[i]) || !std::isfinite(x.single[i]) ||
        !std::isfinite(x.reference[i])) {
      return;
    }
    const auto square = [](double value) { return value * value; };
    const double change = x.reference[i] - x.before[i];
    norms.error += square(x.minka[i] - x.reference[i]);
    norms.single_error += square(x.single[i] - x.reference[i]);
    norms.reference += square(x.reference[i]);
    norms.change += square(change);
    for (size_t draw = 0; draw < x.nudged.size(); ++draw) {
      const double nudged_change = x.nudged[draw][i] - x.nudged_before[draw][i];
      num_changed[1 + draw] += nudged_change != 0 ? 1 : 0;
      if (std::isfinite(nudged_change)) nudged[draw] += square(nudged_change - change);
    }
  }

  void Finish() {
    for (const double draw : nudged) norms.nudged_error = std::max(norms.nudged_error, draw);
    for (double* sum : {&norms.error, &norms.single_error, &norms.nudged_error, &norms.reference,
                        &norms.change}) {
      *sum = std::sqrt(*sum);
    }
  }

  // Every run of one device changes most elements by more than the type rounds off, this one none.
  bool NotApplied(const ResultRounding& rounding) const {
    return rounding.is_state && norms.num_elements > 0 && num_kept == norms.num_elements &&
           norms.change > rounding.own_epsilon * norms.reference &&
           std::ranges::all_of(num_changed,
                               [&](int64_t count) { return 2 * count > norms.num_elements; });
  }
};

// How much of what is allowed is used up.
double Ratio(const Norms& norms) {
  if (norms.error <= 0) return 0;
  return norms.error / std::max(norms.allowed_error, std::numeric_limits<double>::min());
}

void CompareNorms(const ResultElements& x, const ResultRounding& rounding,
                  const PartsOfResult& parts, OutputComparison& out) {
  const size_t per_part_element =
      parts.of_elements.empty() ? 1 : x.minka.size() / parts.of_elements.size();
  std::vector<Sums> sums(1 + parts.devices.size(), Sums(x.nudged.size()));
  for (size_t i = 0; i < x.minka.size(); ++i) {
    sums[0].Add(x, i);
    if (!parts.of_elements.empty()) sums[1 + parts.of_elements[i / per_part_element]].Add(x, i);
  }
  for (size_t part = 0; part < sums.size(); ++part) {
    sums[part].Finish();
    Norms& norms = sums[part].norms;
    const Norms& whole = sums[0].norms;
    const double share = std::sqrt(static_cast<double>(norms.num_elements) /
                                   static_cast<double>(std::max<int64_t>(whole.num_elements, 1)));
    const double noise = std::max({norms.single_error, norms.nudged_error,
                                   share * std::max(whole.single_error, whole.nudged_error)});
    const double factor = norms.reference < noise ? kNoiseFactor * kNoiseFactor : kNoiseFactor;
    norms.allowed_error = factor * noise + Roundings(rounding, norms);
    out.parts.push_back(norms);
    const int64_t device = part == 0 ? -1 : parts.devices[part - 1];
    // A part that has all of the error is named instead of the whole.
    if (part == 0 || Ratio(norms) > 0.999 * Ratio(out.norms)) {
      out.norms = norms;
      if (norms.error > norms.allowed_error) {
        out.fault = Fault::kValue;
        out.device = device;
      }
    }
  }
  for (size_t part = 0; part < sums.size(); ++part) {
    if (!sums[part].NotApplied(rounding)) continue;
    out.norms = sums[part].norms;
    out.fault = Fault::kNotApplied;
    out.device = part == 0 ? -1 : parts.devices[part - 1];
    return;
  }
}

void CompareRange(const std::vector<double>& minka, const std::vector<double>& single,
                  OutputComparison& out) {
  if (single.empty()) return;
  const auto [low, high] = std::ranges::minmax(single);
  const double margin = high - low;
  if (!std::ranges::all_of(minka,
                           [&](double x) { return x >= low - margin && x <= high + margin; })) {
    out.fault = Fault::kValue;
  }
}

}  // namespace

double Roundings(const ResultRounding& rounding, const Norms& norms) {
  if (norms.num_elements == 0) return 0;
  const double root = std::sqrt(static_cast<double>(norms.num_elements));
  const double own = std::max(1.0, 16 / root) * rounding.own_epsilon * norms.reference;
  if (rounding.path_epsilon <= rounding.own_epsilon) return own;
  if (rounding.is_state) return std::max(own, std::min(2.0, 4 / root) * norms.change);
  return std::max(own, std::max(1.0, 4 / root) * rounding.path_epsilon * norms.reference);
}

void CompareStateTogether(const std::vector<ResultRounding>& roundings,
                          std::vector<OutputComparison>& outputs) {
  double error = 0, noise = 0, num_elements = 0, most = 0;
  OutputComparison* worst = nullptr;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ResultRounding& rounding = roundings[i];
    if (!rounding.is_state || rounding.path_epsilon <= rounding.own_epsilon) continue;
    if (outputs[i].parts.empty() || outputs[i].parts[0].change <= 0) continue;
    const Norms& whole = outputs[i].parts[0];
    const auto count = static_cast<double>(whole.num_elements);
    const auto part = [&](double norm) { return count * std::pow(norm / whole.change, 2); };
    error += part(whole.error);
    noise += part(std::max(whole.single_error, whole.nudged_error));
    num_elements += count;
    if (part(whole.error) <= most) continue;
    most = part(whole.error);
    worst = &outputs[i];
  }
  if (worst == nullptr || !worst->ok()) return;
  error = std::sqrt(error / num_elements);
  const double allowed =
      kNoiseFactor * std::sqrt(noise / num_elements) + std::min(2.0, 4 / std::sqrt(num_elements));
  if (error <= allowed) return;
  worst->fault = Fault::kTogether;
  worst->detail = fmt::format(
      "the error of all state together is {:.3g} of its change, allowed {:.3g}, and most of it "
      "here: {:.3g} of {:.3g}",
      error, allowed, worst->parts[0].error, worst->parts[0].change);
}

OutputComparison CompareResult(const ResultRuns& runs, const ResultRounding& rounding,
                               const PartsOfResult& parts) {
  OutputComparison out{.shape = runs.minka.shape};
  if (runs.minka.shape != runs.single.shape) {
    out.fault = Fault::kShape;
    return out;
  }
  const std::vector<double> minka = Elements(runs.minka), single = Elements(runs.single);
  out.largest_difference = LargestDifference(minka, single);
  if (rounding.is_random) {
    out.rule = ComparisonRule::kRange;
    CompareRange(minka, single, out);
  } else if (IsFloat(runs.minka.shape.type) || IsComplex(runs.minka.shape.type)) {
    const ResultElements x = ElementsOf(runs);
    CompareNorms(x, rounding, parts, out);
    CompareNotFinite(x, out);
  } else {
    out.rule = ComparisonRule::kExact;
    if (*runs.minka.bytes != *runs.single.bytes) out.fault = Fault::kValue;
  }
  return out;
}

}  // namespace minka
