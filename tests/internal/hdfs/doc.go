// Package hdfs makes log lines of the shape that HDFS data nodes write, with
// block ids that recur, so that tests need no data of anybody else.
package hdfs
