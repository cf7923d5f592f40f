// A reference to something callable without arguments: for bodies that are run during the call they are given to.
// Unlike std::function it never allocates.
#pragma once
#include <type_traits>

namespace sx {

class FunctionRef {
 public:
  template <class Body>
  requires(!std::is_same_v<std::remove_cvref_t<Body>, FunctionRef>)
      FunctionRef(Body&& body)  // NOLINT(google-explicit-constructor)
      : body_(const_cast<void*>(static_cast<const void*>(&body))),
        call_([](void* b) { (*static_cast<std::remove_reference_t<Body>*>(b))(); }) {}
  void operator()() const { call_(body_); }

 private:
  void* body_;
  void (*call_)(void*);
};

}  // namespace sx
