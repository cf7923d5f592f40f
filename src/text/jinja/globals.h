// What raise_exception() throws: the template itself objects to its input.
#pragma once
#include "text/jinja/value.h"

namespace sx::jinja {

class Refusal : public Failure {
 public:
  using Failure::Failure;
};

}  // namespace sx::jinja
