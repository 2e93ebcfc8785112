// A queue of what its owners hold: no allocation, so nothing is lost for lack of memory. Items have a member `next`.
#pragma once

namespace ellm::serve {

template <class T>
class DiskQueue {
 public:
  T* front() const { return first_; }
  void push(T& item) {
    item.next = nullptr;
    (first_ ? last_->next : first_) = &item;
    last_ = &item;
  }
  /// Null: it is empty.
  T* pop() {
    T* item = first_;
    if (item) first_ = item->next;
    return item;
  }
  /// Nothing where it is not in the queue.
  void remove(const T& item) {
    DiskQueue rest;
    while (T* each = pop()) {
      if (each != &item) rest.push(*each);
    }
    *this = rest;
  }

 private:
  T *first_ = nullptr, *last_ = nullptr;  // last_ is meaningless where there is no first
};

}  // namespace ellm::serve
