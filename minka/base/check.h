// Checks for bugs of our own: a failed check prints where and why and aborts. What a user can cause
// is a Status instead.
#pragma once

#include <string>

#include "fmt/format.h"

namespace minka {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

}  // namespace minka

// MINKA_CHECK(a == b, "{} is not {}", a, b); the message is optional and only built on failure.
#define MINKA_CHECK(condition, ...)                                            \
  do {                                                                         \
    if (!(condition)) [[unlikely]] {                                           \
      ::minka::CheckFailed(__FILE__, __LINE__, #condition,                     \
                           std::string(__VA_OPT__(fmt::format(__VA_ARGS__)))); \
    }                                                                          \
  } while (false)
