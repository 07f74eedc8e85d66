#include "minka/solver/improve/turns.h"

#include <algorithm>

namespace minka {

std::optional<size_t> Turns::Next(const std::vector<char>& may_run) {
  std::optional<size_t> waiting, gaining;
  for (size_t i = 0; i < members_.size(); ++i) {
    if (may_run[i] == 0) continue;
    const Member& member = members_[i];
    if (!waiting || member.last_turn < members_[*waiting].last_turn) waiting = i;
    if (member.gain_per_work > (gaining ? members_[*gaining].gain_per_work : 0)) gaining = i;
  }
  const bool is_for_waiting = is_for_waiting_ || !gaining;
  is_for_waiting_ = !is_for_waiting_;
  return is_for_waiting ? waiting : gaining;
}

void Turns::Note(size_t member, int64_t work, int64_t gained) {
  members_[member].last_turn = ++num_turns_;
  members_[member].gain_per_work =
      static_cast<double>(gained) / static_cast<double>(std::max<int64_t>(1, work));
}

}  // namespace minka
