#include "backend/cuda/loader.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "backend/interface_id.h"
#include "base/error.h"

namespace sx::cuda {
namespace {

namespace fs = std::filesystem;

// Where the library may lie, seen from the program or the Python module that this code is part of: beside it (wheels,
// build trees), a folder above (the program of a wheel), or in lib of the same prefix.
std::vector<fs::path> places() {
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&places), &here) == 0 || !here.dli_fname) return {};
  std::error_code none;
  fs::path file = fs::canonical(here.dli_fname, none);
  if (none) file = fs::canonical("/proc/self/exe", none);  // a program that was found by its name only
  const fs::path folder = file.parent_path();
  return {folder / kPluginFile, folder.parent_path() / kPluginFile, folder.parent_path() / "lib" / kPluginFile};
}

struct Found {
  const Plugin* plugin = nullptr;
  std::string why;  // there is none
};

// The driver is looked for first: the library is large, and without a driver all it could say is that there is none.
Found find() {
  try {
    if (const char* path = std::getenv("SPECEXTEND_CUDA_LIBRARY")) return {&load_plugin(path), ""};
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (!driver) return {nullptr, "this machine has no NVIDIA driver (libcuda.so.1 is not found)"};
    dlclose(driver);
    std::error_code none;
    for (const fs::path& path : places())
      if (fs::exists(path, none)) return {&load_plugin(path.string()), ""};
    return {&load_plugin(kPluginFile), ""};  // by the loader's own paths
  } catch (const Error& e) { return {nullptr, e.what()}; }
}

const Found& found() {
  static const Found one = find();
  return one;
}

}  // namespace

const Plugin& load_plugin(const std::string& path) {
  // It stays loaded: objects of its classes may outlive everything that knows about it.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* const error = dlerror();
    fail("the CUDA backend is not installed or does not load: {}", error ? error : path);
  }
  const auto entry = reinterpret_cast<PluginEntry>(dlsym(library, kPluginEntry));
  if (!entry) fail("'{}' is not SpecExtend's CUDA backend", path);
  const Plugin& plugin = *entry();
  if (std::string_view(plugin.interface) != SX_BACKEND_INTERFACE)
    fail("'{}' belongs to another version: it was built for the interface {}, this is {}", path, plugin.interface,
         SX_BACKEND_INTERFACE);
  return plugin;
}

std::unique_ptr<Backend> load_backend(const CudaOptions& options, std::unique_ptr<Backend> host) {
  const Found& it = found();
  if (!it.plugin) fail("device cuda: {}", it.why);
  return it.plugin->make_backend(options, std::move(host));
}

int device_count() {
  const Found& it = found();
  return it.plugin ? it.plugin->device_count() : 0;
}

std::string why_not_loaded() {
  const Found& it = found();
  return it.plugin ? it.plugin->why_unavailable() : it.why;
}

}  // namespace sx::cuda
