"""Export of a run as a bundle, in any precision and for any execution provider (`retrieval export`).

export calibration_items               contents of the bundle, calibration of the threshold, comparison with fp32
variants                              models of each precision and provider, and their checks
pretrained fit projection             bundles of pretrained models, fitted to a catalogue
verification                          choice of the geometric verification
onnx_writer quantization              torch to ONNX, ONNX to int8 and fp16
"""
