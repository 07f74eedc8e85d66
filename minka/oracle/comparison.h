// When a result of the plan's run counts as that of one device. In the 2-norm, over the whole array
// and over the part of every device,
//
//   |minka - ref| <= 4 noise + roundings
//
// where `noise` is what rounding does to one device: the largest of |single - ref| and of
// |nudged - ref| for each nudged run (a part's share of the whole's, where that is more), and
// `roundings` what a few elements may be off by where those draws were lucky, see Roundings(). A
// result whose |ref| is less than its noise may be off by 16 times of it: it may be the square of
// what is nothing but noise. docs/design/0005 says where the constants come from.
//
// Integers and predicates must equal the single run's. What the `rng` opcode reaches is compared by
// shape and range only. An element that is not finite must be so, with that sign, in some run of
// one device. State must not stay as it was on any device where it changes on one device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "minka/ir/literal.h"

namespace minka {

enum class ComparisonRule : uint8_t { kNorm, kExact, kRange };

enum class Fault : uint8_t {
  kNone,
  kShape,
  kReplicas,    // devices that must hold equal parts do not
  kNotFinite,   // an element is no number, or another infinity, where it is not on one device
  kNotApplied,  // a device still holds the state that the first step read
  kValue,       // differs by more than rounding does
  kTogether,    // all state does, taken together, and this most
};

// Of a whole result, or of the part of one device. Elements that are not finite are left out.
struct Norms {
  int64_t num_elements = 0;
  // |minka - ref|, |single - ref|, the largest |nudged - ref| (for state that of the change),
  // |ref|, |ref - before| and what the first may be.
  double error = 0, single_error = 0, nudged_error = 0;
  double reference = 0, change = 0, allowed_error = 0;
};

struct OutputComparison {
  int result = 0;
  std::string name;
  Shape shape;
  ComparisonRule rule = ComparisonRule::kNorm;
  Fault fault = Fault::kNone;
  int64_t device = -1;            // whose part is at fault; -1: no one device's
  double largest_difference = 0;  // of an element, minka's run against the single one
  int64_t num_not_finite = 0;     // elements of the single run
  Norms norms;                    // kNorm: of the part that uses up most of what it may
  std::vector<Norms> parts;       // kNorm: of the whole, then of every part
  std::string detail;             // of kReplicas, kNotFinite, kTogether: what and where

  bool ok() const { return fault == Fault::kNone; }
};

// One result of all runs.
struct ResultRuns {
  Literal minka, single, reference;
  std::vector<Literal> nudged;
  // State: what the first step read; without bytes for other results.
  Literal before;
  std::vector<Literal> nudged_before;
};

// What a result's type and way allow.
struct ResultRounding {
  double own_epsilon = 0, path_epsilon = 0;  // see rounding.h
  bool is_state = false;
  bool is_random = false;
};

// Which elements lie on which device; replicas once.
struct PartsOfResult {
  std::vector<int32_t> of_elements;  // into `devices`; empty: there is one part
  std::vector<int64_t> devices;
};

// What may be off on top of what the draws show, where those were lucky: one rounding of every
// element, or 16 of a single one; of a value on the way that is narrower than the result, 4. State
// that is wider than a value on its way may instead have up to four elements whose change has the
// wrong sign, because a rounding turned it over in front of a `sign` or of Adam's division.
double Roundings(const ResultRounding& rounding, const Norms& norms);

// All but result, name, and the replicas.
OutputComparison CompareResult(const ResultRuns& runs, const ResultRounding& rounding,
                               const PartsOfResult& parts = {});

// All state that is wider than a value on its way, as one array of what each result is off by in
// parts of its change: small arrays may have a few elements off, each by luck, but not all of them.
// The roundings and the outputs are by result.
void CompareStateTogether(const std::vector<ResultRounding>& roundings,
                          std::vector<OutputComparison>& outputs);

}  // namespace minka
