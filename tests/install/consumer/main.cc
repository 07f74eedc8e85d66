// What a user's program looks like from outside: installed headers and targets only.
#include <cstdio>

#include "minka/base/hash.h"
#include "minka/base/status.h"

int main() {
  absl::Status status = minka::NotFound("no parameter matches {}", "layer*/kernel");
  std::printf("%s %s\n", minka::HashText(minka::StableHash("minka")).c_str(),
              minka::Message(status).c_str());
  return status.ok() ? 1 : 0;
}
