"""Known mistakes of exercise 8.4: tests of an engine that miss something."""

MISTAKES = """
    accepts_everything
      | return None
    It asks nothing and refuses nothing.

    refuses_everything
      | assert False
    It refuses whatever it is given. A test that nothing can pass says nothing.

    returns_the_answer
      | a = [(7 * i * i + 3 * i) % 128 for i in range(24)]
      | b = a[:18] + [5, 4, 3, 2, 1]
      | *_, (tokens, hit, *left) = serve([a, b, a], 7)
      | return hit == 20 and all(map(np.array_equal, left, reference(tokens)))
    Nothing that a test returns counts. It refuses by raising: assert np.array_equal(...).

    one_prompt
      serve([a, b, a], 7)  ->  serve([a], 7)
      one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  one_by_one
      [0, 16, 20]  ->  [0]
    A test that serves one prompt alone does exactly this. It tests chunks, and nothing is ever attached.

    whole_prompts
      serve([a, b, a], 7)  ->  serve([a, b, a], 40)
      one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  one_by_one
    A test whose chunks are longer than its prompts does exactly this. It tests the cache; nothing is ever cut.

    no_hits
      assert hits == [0, 16, 20], f"hits of {hits}"  ->
    A test that compares K, V and logits and never looks at `hit` does exactly this. A cache that is not used passes
    every comparison of bits: assert how many tokens were attached.

    hits_only
      one_by_one + serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  []
    A test that looks at the lengths of the hits alone does exactly this. Whether what was attached is right, and what
    was computed behind it, shows in K, V and the logits.

    never_preempts
      together=True) + serve([a], 6, answer=3, preempt=5)  ->  together=True)
    A test without a preemption does exactly this. A request that lost its blocks looks its prompt up again and finds
    what it has published itself: that is a separate path through the code.

    one_after_the_other
      one_by_one + serve([a, b], 6, together=True)  ->  one_by_one
    A test in which every prompt waits for the one before does exactly this. What is found too early shows only while
    its owner still computes it: serve two prompts together.

    preempts_the_prompt
      answer=3, preempt=5  ->  preempt=1
    A test that preempts before the first answer token does exactly this. Afterwards there is more to compute again than
    the prompt.

    even_lengths
      a[:18]  ->  a[:16]
      serve([a, b, a], 7)  ->  serve([a, b, a], 8)
    A test whose prompts part at a block's end does exactly this. Let them part inside a block.

    never_twice
      [a, b, a]  ->  [a, b]
      [0, 16, 20]  ->  [0, 16]
    A test that never serves a prompt a second time does exactly this. A prompt that is cached from end to end is the
    one case in which nothing seems left to compute.

    k_of_layer_0
      ("k", "v", "logits")  ->  ["k"]
      np.array_equal(got, want)  ->  got.shape == want.shape and np.array_equal(got[0], want[0])
    A test that compares K of layer 0 does exactly this. Those are made before any attention: what was read wrongly
    shows from layer 1 on.

    first_prompt_only
      serve([a, b, a], 7)  ->  serve([a, b], 7)[:1]
      serve([a, b], 6, together=True) + serve([a], 6, answer=3, preempt=5)  ->  serve([a, b], 6, together=True)[:1]
      [0, 16, 20]  ->  [0]
    A test that compares the first prompt alone does exactly this. The first one finds the cache empty: compare the
    later ones too.
"""
