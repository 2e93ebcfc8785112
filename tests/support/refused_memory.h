// A thread for which /dev/shm is full: its fallocate() fails with ENOSPC, when the test says so.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>

namespace ellm::tests {

/// Of the process: threads that are being refused wait until it is open. Counts them.
inline std::atomic<bool> refusal_gate_open{true};
inline std::atomic<uint32_t> refusals{0};

/// From here on the calling thread, and what it starts, is refused memory of file systems. It cannot be undone.
/// False: this kernel has no such filters.
inline bool refuse_memory_to_this_thread() {
  struct sigaction action{};
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    ++refusals;
    while (!refusal_gate_open) usleep(100);
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -ENOSPC;
  };
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(sizeof code / sizeof *code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace ellm::tests
