// The error that raise_exception() throws: the template itself rejects its input.
#pragma once
#include "text/jinja/value.h"

namespace sx::jinja {

class RaisedByTemplate : public Failure {
 public:
  using Failure::Failure;
};

}  // namespace sx::jinja
