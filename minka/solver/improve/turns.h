// Whose turn it is among several that do different things with the same work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace minka {

// By turns whoever gained most per unit of work when it last ran, and whoever has waited longest.
class Turns {
 public:
  explicit Turns(size_t num_members) : members_(num_members) {}

  // Of those that may run; nothing if none may. Then Note() is due.
  std::optional<size_t> Next(const std::vector<char>& may_run);
  void Note(size_t member, int64_t work, int64_t gained);

 private:
  struct Member {
    int64_t last_turn = 0;     // 0: none yet
    double gain_per_work = 0;  // when it last ran
  };
  std::vector<Member> members_;
  int64_t num_turns_ = 0;
  bool is_for_waiting_ = true;
};

}  // namespace minka
