// The library of the CPU's FFI handlers whose loops are recorded. Python looks them up by name.
#include "ffi/handlers.h"

#include <cstring>

#include "device.h"

extern "C" {

XLA_FFI_Handler* FindHandler(const char* name) {
  for (const auto& of_operator : dcn::BackendHandlers()) {
    for (const dcn::Handler& handler : of_operator) {
      if (std::strcmp(handler.name, name) == 0) return handler.call;
    }
  }
  return nullptr;
}

void StartRecording(int64_t threads) { dcn::recorded = {threads}; }

// Returns the number of tasks.
int64_t TakeTimes(double* serial, double* makespan) {
  *serial = dcn::recorded.serial;
  *makespan = dcn::recorded.makespan;
  return dcn::recorded.tasks;
}

}  // extern "C"
