package mds

import (
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	canopyv1 "github.com/canopyfs/canopy/api/canopy/v1"
)

// metadataService serves api's Metadata service.
type metadataService struct {
	canopyv1.UnimplementedMetadataServer
	server *Server
}

var (
	errNoClient = errors.New("the call's metadata names no client id")
	errStopping = errors.New("the node stops")
)

// endOfStream turns the ordinary ends of a stream into nil.
func endOfStream(err error) error {
	if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}
