// The handler touches two flags and nothing else.
#include "client/cli/interrupt.h"

#include <unistd.h>

#include <csignal>

#include "client/cli/failure.h"

namespace ellm::cli {
namespace {

volatile sig_atomic_t interrupts = 0;
volatile sig_atomic_t second_ends = 0;

void on_interrupt(int) {
  if (interrupts && second_ends) _exit(kInterrupted);
  interrupts = 1;
}

}  // namespace

InterruptGuard::InterruptGuard(bool insist) {
  interrupts = 0;
  second_ends = insist;
  struct sigaction action{};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a wait for the daemon or the keyboard is woken
  sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::~InterruptGuard() { signal(SIGINT, SIG_DFL); }

bool interrupted() { return interrupts; }
void clear_interrupt() { interrupts = 0; }

}  // namespace ellm::cli
