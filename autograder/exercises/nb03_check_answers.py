"""Known mistakes of exercise 3.3: tests of a prefill that miss something."""

MISTAKES = """
    accepts_everything
      | return None
    It asks nothing and refuses nothing.

    refuses_everything
      | assert False
    It refuses whatever it is given. A test that nothing can pass says nothing.

    returns_the_answer
      | token_ids = [(7 * i * i + 3 * i) % 128 for i in range(40)]
      | k0, v0, _ = reference(token_ids)
      | for sizes, hit in [([5, 20, 15], 0), ([3, 19], 18)]:
      |     k, v, _ = prefill_fn(token_ids, sizes, hit)
      |     same = np.array_equal(k, k0) and np.array_equal(v, v0)
      | return same
    Nothing that a test returns counts. It refuses by raising: assert np.array_equal(...), once for each cut.

    v_of_layer_0
      np.array_equal(got, want)  ->  name != "v" or np.array_equal(got[0], want[0])
    A test that compares V of layer 0, or shapes, does exactly this. RoPE turns q and k and never v, and nothing comes
    before layer 0: that V is the same with any positions.

    k_of_layer_0
      np.array_equal(got, want)  ->  name != "k" or np.array_equal(got[0], want[0])
    A test that compares K of layer 0 alone does exactly this. Wrong key positions show there. Wrong query positions
    pass through attention first and show from layer 1 on.

    argmax
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([2, 38], 0), ([1, 37], 2)
      np.array_equal(got, want)  ->  name != "logits" or got.argmax() == want.argmax()
    A test that compares the most likely next token does exactly this. That token often stays the same when the cache is
    wrong: compare bits.

    close_v
      np.array_equal(got, want)  ->  name == "k" or np.allclose(got, want, atol=1e-4)
    A test that compares V and logits within a tolerance does exactly this. Attention depends on differences of
    positions, so when all are one too large only the last bits of V and logits change. K itself is turned further.

    all_v
      np.array_equal(got, want)  ->  name != "v" or np.array_equal(got, want)
    A test that compares V alone, of every layer and in every bit, does exactly this. V shows what the layers before it
    did with positions, and no layer comes behind the last: its keys reach K and the logits only.

    tolerance
      np.array_equal(got, want)  ->  np.allclose(got, want, atol=0.1)
    A test that compares K, V and logits within a tolerance does exactly this. A small mistake changes bits too: the
    arithmetic here is exact, so compare with np.array_equal.

    equal_chunks
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([10] * 4, 0), ([8, 8, 6], 18)
    A test whose chunks are all equally long, except for a shorter last one, does exactly this: chunk index x chunk
    length is then the right start.

    no_hit
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([5, 20, 15], 0), ([1, 39], 0)
    A test without a hit does exactly this: nothing tells it whether cached tokens are counted.

    one_chunk
      ([5, 20, 15], 0), ([3, 19], 18)  ->  ([40], 0)
    A test whose only chunk is the whole prompt does exactly this: in the first chunk relative and absolute positions
    are the same.

    against_itself
      reference(token_ids)  ->  prefill_fn(token_ids, [40], 0)
    A test that compares the prefill with the same prefill in one pass does exactly this: a mistake that is the same in
    every cut agrees with itself.
"""
