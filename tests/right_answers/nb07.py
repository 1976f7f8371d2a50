"""Right answers to the exercises of notebook 07."""

import hashlib

import numpy as np

from course_lib.lessons.nb07_prefix_cache import Node, common, pages_of


def block_hash_1(parent, token_ids):
    hasher = hashlib.sha256(parent)
    for token in token_ids:
        hasher.update(int(token).to_bytes(8, "little"))
    return hasher.digest()


def block_hash_2(parent, token_ids):
    return hashlib.sha256(b"".join([parent, np.asarray(token_ids, dtype="<i8").tobytes()])).digest()


class PrefixCache_1:
    def __init__(self, num_blocks):
        self.published = {}  # block -> hash; a dict keeps the order of publishing

    def __contains__(self, block):
        return block in self.published

    def match(self, hashes):
        first = {}
        for block, value in self.published.items():
            first.setdefault(value, block)
        found = []
        while len(found) < len(hashes) and hashes[len(found)] in first:
            found.append(first[hashes[len(found)]])
        return found

    def publish(self, value, block):
        self.published.setdefault(block, value)

    def forget(self, block):
        self.published.pop(block)


class PrefixCache_2:
    def __init__(self, num_blocks):
        self.table, self.of = {}, {}

    def __contains__(self, block):
        return self.of.get(block) is not None

    def match(self, hashes):
        from itertools import takewhile

        copies = (self.table.get(value, {}) for value in hashes)
        return [next(iter(blocks)) for blocks in takewhile(len, copies)]

    def publish(self, value, block):
        if block not in self:
            self.of[block] = value
            self.table.setdefault(value, {})[block] = True

    def forget(self, block):
        del self.table[self.of.pop(block)][block]


class Allocator_1:
    def __init__(self, num_blocks):
        from collections import OrderedDict

        self.free = OrderedDict((block, True) for block in range(1, num_blocks + 1))
        self.refs = dict.fromkeys(range(num_blocks + 1), 0)

    def allocate(self, count):
        if len(self.free) < count:
            return None
        blocks = [self.free.popitem(last=False)[0] for _ in range(count)]
        self.refs.update(dict.fromkeys(blocks, 1))
        return blocks

    def touch(self, blocks):
        for block in blocks:
            self.free.pop(block, None)
            self.refs[block] += 1

    def release(self, blocks):
        if not all(self.refs[block] for block in blocks):
            raise ValueError("released twice?")
        for block in blocks[::-1]:
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free[block] = True


class Allocator_2:
    def __init__(self, num_blocks):
        from collections import deque

        self.refs, self.free = np.zeros(num_blocks + 1, dtype=int), deque(range(1, num_blocks + 1))

    def allocate(self, count):
        if count <= len(self.free):
            blocks = [self.free.popleft() for _ in range(count)]
            self.refs[blocks] = 1
            return blocks

    def touch(self, blocks):
        for block in [b for b in blocks if self.refs[b] == 0]:
            self.free.remove(block)
        for block in blocks:
            self.refs[block] += 1

    def release(self, blocks):
        if blocks and min(self.refs[blocks]) == 0:
            raise ValueError("a block is free")
        for block in blocks:
            self.refs[block] -= 1
        self.free.extend(block for block in reversed(blocks) if self.refs[block] == 0)


class RequestCache_1:
    def __init__(self, allocator, prefix, block_size):
        self.a, self.p, self.b = allocator, prefix, block_size

    def admit(self, num_tokens, hashes):
        hit = self.p.match(hashes)
        while hit and len(hit) * self.b >= num_tokens:
            hit = hit[:-1]
        need = (num_tokens + self.b - 1) // self.b - len(hit)
        if need > len([block for block in self.a.free if block not in hit]):
            return None
        self.a.touch(hit)
        fresh = self.a.allocate(need)
        for block in fresh:
            if block in self.p:
                self.p.forget(block)
        return list(hit) + list(fresh)

    def commit(self, table, hashes, start, stop):
        for i in range(stop // self.b):
            if (i + 1) * self.b > start:
                self.p.publish(hashes[i], table[i])


class RequestCache_2:
    def __init__(self, *parts):
        self.parts = parts

    def admit(self, num_tokens, hashes):
        allocator, prefix, size = self.parts
        blocks = prefix.match(hashes[: max(0, num_tokens - 1) // size])
        left = len(allocator.free) - sum(1 for block in blocks if not allocator.refs[block])
        new = -(-(num_tokens - size * len(blocks)) // size)
        if left < new:
            return
        allocator.touch(blocks)
        blocks = blocks[:]
        for block in allocator.allocate(new):
            if block in prefix:
                prefix.forget(block)
            blocks.append(block)
        return blocks

    def commit(self, table, hashes, start, stop):
        size = self.parts[2]
        for value, block in list(zip(hashes, table))[start // size : stop // size]:
            self.parts[1].publish(value, block)


class RadixTree_1:
    def __init__(self, block_size):
        self.size = block_size
        self.root = Node()

    def match(self, token_ids):
        def below(node, pages):
            child = node.children.get(pages[0]) if pages else None
            if child is None:
                return []
            same = common(child.pages, pages)
            more = below(child, pages[same:]) if same == len(child.pages) else []
            return child.blocks[:same] + more

        return below(self.root, pages_of(token_ids, self.size))

    def insert(self, token_ids, blocks):
        def below(node, pages, blocks):
            if not pages:
                return 0
            if pages[0] not in node.children:
                node.children[pages[0]] = Node(pages, blocks)
                return 0
            child = node.children[pages[0]]
            same = common(child.pages, pages)
            if same < len(child.pages):
                tail = Node(child.pages[same:], child.blocks[same:], dict(child.children))
                del child.pages[same:], child.blocks[same:]
                child.children = {tail.pages[0]: tail}
            return same + below(child, pages[same:], blocks[same:])

        pages = pages_of(token_ids, self.size)
        return below(self.root, pages, list(blocks)[: len(pages)])


class RadixTree_2:
    # the node above is made anew, and the old object becomes the lower part
    def __init__(self, block_size):
        self.block_size, self.root = block_size, Node()

    def match(self, token_ids):
        node, rest, found = self.root, pages_of(token_ids, self.block_size), []
        while rest and rest[0] in node.children:
            node = node.children[rest[0]]
            for page, block in zip(node.pages, node.blocks):
                if not rest or rest[0] != page:
                    return found
                found.append(block)
                rest = rest[1:]
        return found

    def insert(self, token_ids, blocks):
        rest, parent = pages_of(token_ids, self.block_size), self.root
        have = len(self.match(token_ids))
        left = have
        while left:
            child = parent.children[rest[0]]
            if left < len(child.pages):
                upper = Node(child.pages[:left], child.blocks[:left])
                child.pages, child.blocks = child.pages[left:], child.blocks[left:]
                upper.children[child.pages[0]] = child
                parent.children[rest[0]] = child = upper
            left -= len(child.pages)
            rest, parent = rest[len(child.pages) :], child
        if rest:
            parent.children[rest[0]] = Node(rest, [*blocks[have : have + len(rest)]])
        return have
