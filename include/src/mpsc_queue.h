// MpscQueue: values of many threads for one, without a lock, so that no thread that is pushed aside
// in the middle of a call holds another one up, nor what another one has put.
//
// THREADING: Put and PutAll on any thread; the rest on the one that takes. OWNERSHIP: values are
// the queue's until they are taken; what is put after Close is destroyed by who puts it.
// LIMITS: none; each value is an allocation, which the thread that takes frees: where it is large
// it may wait for the allocator's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
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

  // Calls `wake` unless the thread that takes has been woken since it last took: it is to call
  // TakeAll once more behind it. Several threads may at once.
  template <typename Wake>
  void Put(T value, const Wake& wake) {
    Node* const node = new Node{std::move(value), nullptr};
    Add(node, node, wake);
  }
  // The first one first.
  template <typename Wake>
  void PutAll(std::span<const T> values, const Wake& wake) {
    Node* newest = nullptr;
    Node* oldest = nullptr;
    for (const T& value : values) {
      newest = new Node{value, newest};
      if (oldest == nullptr) oldest = newest;
    }
    if (newest != nullptr) Add(newest, oldest, wake);
  }

  // Appends all that wait; those of one thread come in its order.
  void TakeAll(std::vector<T>* taken) {
    if (newest_ == ClosedMark()) return;
    ++rounds_;  // first: whoever sees it has put what the next round takes
    Node* node = newest_.exchange(nullptr);
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
    Node* node = newest_.exchange(ClosedMark());
    if (node != ClosedMark()) Destroy(node);
  }

 private:
  struct Node {
    T value;
    Node* older;
  };

  template <typename Wake>
  void Add(Node* newest, Node* oldest, const Wake& wake) {
    Node* next = newest_;
    do {
      if (next == ClosedMark()) return Destroy(newest);
      oldest->older = next;
    } while (!newest_.compare_exchange_weak(next, newest));
    // Who has woken it may be aside before it says so: then it is woken once more. What is said of
    // this round was said behind a wake, which the next one follows.
    const uint64_t round = rounds_;
    if (woken_round_ == round) return;
    wake();
    woken_round_ = round;
  }
  static void Destroy(Node* node) {
    while (node != nullptr) delete std::exchange(node, node->older);
  }
  // No node's address.
  Node* ClosedMark() { return reinterpret_cast<Node*>(this); }

  std::atomic<Node*> newest_{nullptr};
  std::atomic<uint64_t> rounds_{1};       // of TakeAll, one more
  std::atomic<uint64_t> woken_round_{0};  // in which the thread that takes was woken
};

}  // namespace terrace
