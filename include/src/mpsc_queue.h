// MpscQueue: values of many threads for one, without a lock, so that no thread that is pushed aside
// in the middle of a call holds another one up.
//
// THREADING: Put on any thread; the rest on the one that takes. OWNERSHIP: values are the queue's
// until they are taken; what is put after Close is destroyed by who puts it.
// LIMITS: none; each value is an allocation.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

namespace terrace {

template <typename T>
class MpscQueue {
 public:
  MpscQueue() = default;
  ~MpscQueue() { Close(); }
  MpscQueue(const MpscQueue&) = delete;
  MpscQueue& operator=(const MpscQueue&) = delete;

  // True: nothing was waiting, so the thread that takes is to be woken.
  bool Put(T value) {
    Node* newest = newest_.load(std::memory_order_relaxed);
    Node* const node = new Node{std::move(value), nullptr};
    do {
      if (newest == ClosedMark()) {
        delete node;
        return false;
      }
      node->older = newest;
    } while (!newest_.compare_exchange_weak(newest, node, std::memory_order_release,
                                            std::memory_order_relaxed));
    return newest == nullptr;  // the node may be gone by now
  }

  // Appends all that wait; those of one thread come in its order.
  void TakeAll(std::vector<T>* taken) {
    if (newest_.load(std::memory_order_relaxed) == ClosedMark()) return;
    Node* node = newest_.exchange(nullptr, std::memory_order_acquire);
    Node* oldest = nullptr;
    while (node != nullptr) {
      Node* const older = std::exchange(node->older, oldest);
      oldest = std::exchange(node, older);
    }
    while (oldest != nullptr) {
      taken->push_back(std::move(oldest->value));
      delete std::exchange(oldest, oldest->older);
    }
  }

  // What waits is destroyed, and so is what is put from now on.
  void Close() {
    Node* node = newest_.exchange(ClosedMark(), std::memory_order_acquire);
    if (node == ClosedMark()) return;
    while (node != nullptr) delete std::exchange(node, node->older);
  }

 private:
  struct Node {
    T value;
    Node* older;
  };
  // No node's address.
  Node* ClosedMark() { return reinterpret_cast<Node*>(this); }

  std::atomic<Node*> newest_{nullptr};
};

}  // namespace terrace
