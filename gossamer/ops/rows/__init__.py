"""Row expressions: reductions over the same dimensions, with arithmetic before and after them.

Layer norm, RMS norm, group norm, softmax and similar layers are row expressions. One kernel
computes all of them.
"""
