// Package chunkstore keeps columns as files with a CRC-32C per block, so that
// damaged bytes are never returned as good ones.
package chunkstore
