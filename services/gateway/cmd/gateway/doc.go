// Command gateway runs one gateway. Its duties towards its operator: --help lists
// every setting; it exits 0 after an orderly stop.
package main
