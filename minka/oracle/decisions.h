// Decisions: results that jump where what they read differs by a rounding. A relu's mask, a sign
// and a conversion to integers go over a threshold. Picks say which elements of an array are the
// largest or come first (top-k, sort, arg-max, equality with the maximum), and who is picked
// instead may have everything else in common with nobody: a token goes to another expert.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "minka/ir/literal.h"
#include "minka/ir/step.h"

namespace minka {

bool IsDecision(const Module& module, Value value);
bool IsPick(const Module& module, Value value);
// Quotients, roots and logarithms, and products with them: where what they read lies within
// rounding of zero, their result may be anything. Adafactor's first step divides a gradient by its
// own size.
bool IsUnstableAtZero(const Computation& entry, const Instruction& instruction);
// Of the entry computation, in its order.
std::vector<Value> FindPicks(const Module& module);

// The values that Distance() reads of a decision.
std::vector<Value> InputsOfDecision(const Module& module, Value decision);
// How far what an element of a decision reads lies from where it would turn over. Of picks: of
// equalities alone.
double ThresholdDistance(const Module& module, Value decision, std::span<const Literal> inputs,
                         int64_t element);
// How far, for each element in which `mine` is another decision than `other`, what `mine` chose
// lies from where it would be right, by the `inputs` that `other` read. NaN: it never is.
struct TurnedElement {
  int64_t element = 0;
  double distance = 0;
};
std::vector<TurnedElement> TurnedElements(const Module& module, Value decision,
                                          std::span<const Literal> inputs, const Literal& mine,
                                          const Literal& other);

// The other ways in which an equality with the largest (or least) of some elements could have gone:
// `decided` with one element more for those that had been equal, by how far that one lies from
// them. Empty: no such equality, or one whose elements cannot be told apart.
struct OtherPick {
  double distance = 0;
  std::vector<int64_t> turned;  // elements
};
std::vector<OtherPick> OtherPicks(const Module& module, Value decision,
                                  std::span<const Literal> inputs, const Literal& decided);

// The step with more results, behind its own.
Step WithResults(Step step, std::span<const Value> values);
// The step in which the values are batch inputs, behind its own parameters. Behind these, for each
// of `choices`, whether it is given (pred[]), and what. Without marks.
Step WithGiven(const Step& step, std::span<const Value> values,
               std::span<const Value> choices = {});

}  // namespace minka
