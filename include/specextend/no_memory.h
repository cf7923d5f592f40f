// What the library throws where a device has no memory for more cells.
#pragma once
#include <specextend/error.h>

namespace sx {

// Nothing else is wrong: what was to be restored, copied or read may be tried again when sessions hold less.
class NoMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace sx
