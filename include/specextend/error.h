// What the library throws when the outside world is wrong: a file, a model, an option. The message names the culprit.
#pragma once
#include <stdexcept>

namespace sx {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sx
