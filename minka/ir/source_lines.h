// Where in the user's program an operation was written, as the frontend's metadata says.
#pragma once

#include <string>

#include "minka/ir/hlo.pb.h"

namespace minka {

class SourceLines {
 public:
  // The module's `stack_frame_index`. One that cannot be read is taken for an empty one: lines are
  // for people alone.
  explicit SourceLines(const std::string& stack_frame_index);

  // "model.py:12": of the innermost frame that lies in no installed package, else of the innermost
  // one, else the operation's own. Empty: the metadata does not say.
  std::string Of(const hlo::OpMetadata& metadata) const;

 private:
  hlo::StackFrameIndex index_;
};

}  // namespace minka
