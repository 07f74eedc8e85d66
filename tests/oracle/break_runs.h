// Broken programs as the oracle sees them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "minka/driver/check.h"
#include "minka/driver/compile.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/mesh/local_devices.h"
#include "tests/oracle/breaks.h"
#include "tests/oracle/subjects.h"

namespace minka {

enum class Outcome : char {
  kRefused = 'R',
  kNoPlace = '-',         // no program of the subject has a place for the fault
  kWithinRounding = '~',  // no result moves by more than twice what rounding does to the right plan
  kMissed = 'M',
};

// One subject's programs, each planned once, and what one device makes of it.
class BreakRuns {
 public:
  BreakRuns(const Subject& subject, const LocalDevices& devices);

  Outcome Run(const Break& fault);
  // Of the last run: the plan, what was refused, or by how much of rounding results moved.
  const std::string& explanation() const { return explanation_; }

 private:
  struct Program {
    SubjectPlan plan;
    CompiledStep compiled;
    std::optional<OneDeviceResults> one_device;
    std::optional<MeshResults> right;
  };
  Program& ProgramOf(size_t plan);
  MeshResults RunProgram(const Program& program, const Module& module) const;
  bool IsWithinRounding(const Program& program, const MeshResults& broken);

  Subject subject_;
  const LocalDevices& devices_;
  TracedStep traced_;
  StepInputs inputs_;
  std::vector<std::unique_ptr<Program>> programs_;  // by plan
  std::string explanation_;
};

}  // namespace minka
